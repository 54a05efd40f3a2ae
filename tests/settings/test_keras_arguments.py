"""Tests the errors for arguments of Keras that an agent does not have."""

import inspect
import re

import numpy as np
import pytest

import tf_reinforce as tfr

X = np.zeros((3, 4))


@pytest.fixture(scope="module")
def agent():
    return tfr.Reinforce.for_env("CartPole-v1", hidden=())


ID = "CartPole-v1"
CALLS = [
    ("fit", (X, X), {}, "many positional arguments. Expected: fit(env, …), with"),
    ("fit", (X,), {"epochs": 1}, "must be an environment id"),
    ("evaluate", ([1], 2), {}, "Received: env=[1] of type list"),
    ("fit", (), {}, "missing a required argument: 'env'. Expected: fit(env, …), with"),
    ("fit", (), {"x": X}, "'x'. Instead, pass an environment, which"),
    ("fit", (ID,), {"batch_size": 3}, "Instead, pass `episodes_per_epoch`"),
    ("fit", (ID,), {"validation_data": X}, "pass `validation_env`"),
    (
        "fit",
        (ID,),
        {"epoch": 3},
        "unexpected keyword argument 'epoch'. Did you mean 'epo",
    ),
    ("fit", (ID,), {"zzz": 3}, "'zzz'. Its help lists all. Received: zzz=3 of type int"),
    ("evaluate", (ID,), {"episode": 3}, "Did you mean 'episodes'?"),
    ("act", (X,), {"action_masks": X}, "Did you mean 'action_mask'?"),
]


@pytest.mark.parametrize("method, args, kwargs, text", CALLS)
def test_error_names_what_to_use_instead(agent, method, args, kwargs, text):
    with pytest.raises(TypeError, match=re.escape(text)):
        getattr(agent, method)(*args, **kwargs)
    assert agent.updates == 0


def test_predict_returns_the_outputs_of_the_policy(agent):
    np.testing.assert_allclose(agent.predict(X, verbose=0), agent(X))


def test_signature_and_documentation_do_not_change():
    names = list(inspect.signature(tfr.Reinforce.fit).parameters)
    assert names[:4] == ["self", "env", "epochs", "steps"]
    assert tfr.Reinforce.evaluate.__doc__.startswith("Evaluates the policy")
