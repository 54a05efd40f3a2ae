"""Tests that each setting accepts the values of its kind, and refuses all others."""

import math
import pathlib

import numpy as np
import pytest

from tf_reinforce.settings import config
from tf_reinforce.settings import schema

NAN, INF = math.nan, math.inf
VALUE = {"kind": "value", "passes": 4, "hidden": [8]}
RATES = {"first": 1.0, "last": 0}
HEAD = {"kind": "Gaussian", "initial_scale": 1}
POOL = [None, True, False, -1, 0, 1, 2, 0.5, 1.5, NAN, INF, 10**400, "x", "2", "", [], {}]
POOL += [[1], [0], [0.2, 0.2], [0.2, NAN], [1.2, 0.2], [10**6, 10**6], VALUE, RATES, HEAD]
POOL += [{"first": 1}, {"first": NAN, "last": 0}, {"kind": "mean"}, {"a": 1}, len]
POOL += [{"kind": "value", "depth": 2}, {"kind": "value", "passes": 10_001}, 10**5]
COUNT, NUMBER, FLAG = [1, 2, 10**5, 10**400], [0, 1, 2, 10**5, 0.5, 1.5], [True, False]
ACCEPTED = {
    "agent": {
        **dict.fromkeys(("gamma", "gae_lambda"), [0, 1, 0.5]),
        **dict.fromkeys(("discount_states", "scale_rewards"), FLAG),
        "normalize_observations": FLAG,
        "returns": ["to_go", "whole"],
        "scale_advantages": [None, "batch", "running"],
        "mean_over": ["episodes", "steps"],
        "on_truncation": ["bootstrap", "terminal", "drop"],
        "minibatch_size": [None, *COUNT],
        **dict.fromkeys(("passes", "steps_per_execution"), [1, 2]),  # at most 10,000
        "ratio_clip": [1, 2, 10**5, 1.5, [0.2, 0.2]],
        "max_kl": [None, *NUMBER],
        "entropy_coef": NUMBER,
        "action_mask": [None, "x", "2", ""],  # `action_masks` checks the place
        "context": [None, 1, 2],
        "context_inputs": [["observations"], ["observations", "rewards"]],
        "memory": [None, 1, 2, "gru", "attention"],
        "hidden": [[1], []],
        "learning_rate": [*NUMBER, RATES],
        "baseline": [*config.BASELINES, "value", "none", VALUE],
        "head": [None, *config.BOX_HEADS, HEAD],
        "jit_compile": ["auto", *FLAG],
    },
    "fit": {
        **dict.fromkeys(("epochs", "steps", "max_episode_steps"), [None, 1, 2, 10**5]),
        **dict.fromkeys(("episodes_per_epoch", "steps_per_epoch"), [None, 1, 2, 10**5]),
        **dict.fromkeys(("num_envs", "workers"), [1, 2]),
        "on_bad_env": ["raise", "drop_episode"],
        "on_env_error": ["raise", "restart"],
        "step_timeout": [1, 2, 10**5, 0.5, 1.5],
        "info_keys": [[], ["x", "y"]],
    },
    "evaluation": {
        **dict.fromkeys(("episodes", "every"), COUNT),
        "deterministic": FLAG,
        "target": [-1, *NUMBER],
        "max_episode_steps": [None, *COUNT],
    },
    "checkpoint": {
        "every_seconds": [None, *NUMBER],
        "every_updates": [None, *COUNT],
        "grace_seconds": NUMBER,
    },
    "callbacks": {
        "diagnose": FLAG,
        "tensorboard": ["scalars", "histograms"],
        "stop_at_return": [-1, *NUMBER],
    },
}
SETTINGS = [(table, name) for table, names in ACCEPTED.items() for name in names]


def test_table_contains_each_setting():
    found = {table: set(hints) for table, hints in config.TABLES.items()}
    assert found == {table: set(names) for table, names in ACCEPTED.items()}


@pytest.mark.parametrize("table, name", SETTINGS)
def test_setting_accepts_its_values_only(table, name):
    accepted = {repr(value): value for value in ACCEPTED[table][name]}
    for value in accepted.values():
        found = config.check_option(table, name, value)
        assert found == (tuple(value) if isinstance(found, tuple) else value)
        assert type(found) is not int or type(value) is not float
    for value in POOL:
        if repr(value) not in accepted:
            with pytest.raises(ValueError) as error:
                config.check_option(table, name, value)
            assert name in str(error.value) and len(str(error.value)) < 500
            assert error.value.__context__ is None  # `load` shows the first error
            parts = [*value.values(), *value] if isinstance(value, dict) else value
            parts = parts if isinstance(parts, (list, dict)) else []
            shown = [repr(x)[:200] for x in (value, *parts)]
            assert any(text in str(error.value) for text in shown)


def test_numbers_of_numpy_become_those_of_python():
    assert type(config.check_option("agent", "gamma", np.float32(0.5))) is float
    assert type(config.check_option("fit", "epochs", np.int64(3))) is int


@pytest.mark.parametrize(
    "text, hint, value",
    [
        ("1e5", schema.Count, 100_000),
        ("2.5e3", schema.Count, 2500),
        ("10_000", schema.Count, 10_000),
        ("9.8", schema.Finite, 9.8),
        ("3", str, "3"),
        ("[0.2, 0.2]", config.TABLES["agent"]["ratio_clip"], (0.2, 0.2)),
        ("{first = 1.0, last = 0}", config.TABLES["agent"]["learning_rate"], RATES),
        ("mean", config.TABLES["agent"]["baseline"], "mean"),
    ],
)
def test_text_is_read_by_its_hint(text, hint, value):
    found = schema.read("x", hint, text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "text", ["1.5", "1e-3", "inf", "nan", "many", "0", "", "[" * 10**5]
)
def test_text_that_is_no_count_is_refused(text):
    with pytest.raises(ValueError, match="`x` must be a whole number of at least 1"):
        schema.read("x", schema.Count, text)


def rows(cls, table):
    """Yields the rows of the settings of a table in docs/options.md."""
    texts = schema.help_texts(cls)
    for name, hint in config.TABLES[table].items():
        default = getattr(cls, name, None)
        shown = "" if default is None else f"`{default!r}`"
        yield f"| `{name}` | {shown} | {schema.expected(hint)} | {texts[name]} |"


@pytest.mark.parametrize("table, cls", [
    ("agent", config.AgentSettings),
    ("fit", config.FitOptions),
    ("evaluation", config.Evaluation),
])  # fmt: skip
def test_page_lists_all_settings(table, cls):
    page = (pathlib.Path(__file__).parents[2] / "docs" / "options.md").read_text()
    assert "\n".join(rows(cls, table)) in page
