"""Tests the errors for arguments of Keras that an agent does not have."""

import inspect
import re

import keras
import numpy as np
import pytest

import tf_reinforce as tfr
from tf_reinforce.settings import keras_arguments

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


def test_renamed_argument_works_with_a_warning(monkeypatch):
    """As docs/compatibility.md promises for a minor version."""
    table = {"Reinforce": {"discount": "gamma"}, "fit": {"updates": "epochs"}}
    monkeypatch.setattr(keras_arguments, "RENAMED", table)
    policy = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.warns(
        DeprecationWarning, match="`discount` of `Reinforce` is now `gamma`"
    ):
        agent = tfr.Reinforce(policy, discount=0.5)
    assert agent.gamma == 0.5
    with pytest.warns(DeprecationWarning, match="is now `gamma`") as caught:
        agent = tfr.Reinforce.for_env(ID, hidden=(), discount=0.25)
    assert agent.gamma == 0.25 and caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="`updates` of `fit` is now `epochs`"):
        agent.fit(ID, updates=1, episodes_per_epoch=1, max_episode_steps=3, verbose=0)
    assert agent.updates == 1
    with pytest.raises(TypeError, match="`fit` got both `epochs` and its old name `upd"):
        agent.fit(ID, updates=1, epochs=2)
