"""Tests that the options and names of `config` are those of the rest of the package."""

import dataclasses
import inspect

import pytest

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce.heads import box
from tf_reinforce.settings import config


def signature_defaults(function):
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters}


def test_defaults_of_an_agent_are_those_of_its_options():
    """The signature of `Reinforce` repeats the defaults for its readers."""
    defaults = signature_defaults(tfr.Reinforce.__init__)
    for field in dataclasses.fields(config.AgentOptions):
        assert defaults[field.name] == field.default, field.name
    assert defaults["baseline"] == config.FOR_ENV_DEFAULTS["baseline"]


@pytest.mark.parametrize("method", ["evaluate", "collect"])
def test_methods_have_the_defaults_of_fit(method):
    defaults = signature_defaults(getattr(tfr.Reinforce, method))
    for name in ("num_envs", "workers", "max_episode_steps"):
        assert defaults[name] == getattr(config.FitOptions, name)


NAMES = "validation_freq", "validation_episodes", "validation_deterministic"
GIVEN = {**dict.fromkeys((*NAMES, "max_episode_steps")), "resume": "run"}
PRESET = {"every": 25, "episodes": 30, "max_episode_steps": 9, "target": 5.0}


@pytest.mark.parametrize(
    "given, preset, expected",
    [
        ({"resume": None}, None, (1, 10, True, 7)),
        ({"resume": None}, PRESET, (1, 10, True, 7)),
        ({}, None, (10, 100, True, 7)),
        ({}, PRESET, (25, 30, True, 9)),
        ({}, {}, (10, 100, True, None)),
        ({"max_episode_steps": 7}, PRESET, (25, 30, True, 7)),
        ({"validation_freq": [3], "validation_episodes": 4}, PRESET, ([3], 4, True, 9)),
        ({"validation_deterministic": False}, {}, (10, 100, False, None)),
    ],
)
def test_validations_of_a_run_are_those_of_its_preset(given, preset, expected):
    """Unless arguments of `fit` are given. The time limit of the training is 7 steps."""
    found = config.validation_table({**GIVEN, **given}, preset, 7)
    names = "every", "episodes", "deterministic", "max_episode_steps"
    assert found == dict(zip(names, expected, strict=True))


@pytest.mark.parametrize(
    "name, value", [(NAMES[0], [0]), (NAMES[0], (3, "2")), (NAMES[1], 0), (NAMES[2], 1)]
)
def test_wrong_validations_are_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        config.validation_table({**GIVEN, name: value}, None, 7)


@pytest.mark.parametrize("name", config.BASELINES)
def test_each_name_of_a_baseline_makes_its_class(name):
    assert type(baselines.get(name)) is getattr(baselines, config.BASELINES[name])


def test_each_baseline_without_arguments_has_a_name():
    classes = [getattr(baselines, name) for name in baselines.__all__]
    classes = [x for x in classes if inspect.isclass(x)]
    classes = [x for x in classes if issubclass(x, baselines.Baseline)]
    others = {baselines.Baseline, baselines.Zero, baselines.Value}
    names = {x.__name__ for x in set(classes) - others}
    assert names == set(config.BASELINES.values()), (
        "Complete BASELINES in settings/config.py."
    )


def test_each_head_for_a_box_can_be_chosen_by_name():
    classes = [getattr(heads, name) for name in heads.__all__]
    classes = [x for x in classes if inspect.isclass(x) and issubclass(x, box.BoxHead)]
    names = {x.__name__ for x in classes}
    assert names == set(config.BOX_HEADS), "Complete BOX_HEADS in settings/config.py."


@pytest.mark.parametrize("name", config.BOX_HEADS)
def test_the_arguments_of_a_head_by_name_exist(name):
    head_class = getattr(heads, name)
    parameters = set()
    for ancestor in head_class.__mro__:
        if "__init__" in vars(ancestor) and issubclass(ancestor, box.BoxHead):
            parameters |= set(inspect.signature(ancestor.__init__).parameters)
    assert set(head_class.setting_names) <= parameters
