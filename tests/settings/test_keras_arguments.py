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


@pytest.mark.parametrize(
    "method, args, kwargs, text",
    [
        ("fit", (X, X), {}, "learns from episodes, and not from data"),
        ("fit", (X,), {}, "of type ndarray"),
        ("fit", (), {"env": X}, "of type ndarray"),
        ("act", (), {"x": X}, "`act` of an agent has no argument 'x'. help"),
        (
            "evaluate",
            ([1], [2]),
            {},
            'evaluate("CartPole-v1", …). Received: env=[1] of type list',
        ),
        (
            "fit",
            ("a", 1),
            {},
            "too many positional arguments. Expected: fit(env, …), with",
        ),
        (
            "fit",
            (),
            {},
            "missing a required argument: 'env'. Expected: fit(env, …), with",
        ),
        (
            "fit",
            (),
            {"x": X},
            "'x'. Instead, an agent learns from the episodes of an env",
        ),
        (
            "fit",
            ("CartPole-v1",),
            {"batch_size": 3},
            "Instead, pass `episodes_per_epoch`",
        ),
        ("fit", ("CartPole-v1",), {"validation_data": X}, "pass `validation_env`"),
        (
            "fit",
            ("CartPole-v1",),
            {"epoch": 3},
            "no argument 'epoch'. Did you mean 'epochs'",
        ),
        ("fit", ("CartPole-v1",), {"zzz": 3}, "'zzz'. help(Reinforce.fit) lists all"),
        ("evaluate", ("CartPole-v1",), {"episode": 3}, "Did you mean 'episodes'?"),
        ("act", (X,), {"action_masks": X}, "Did you mean 'action_mask'?"),
    ],
)
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
