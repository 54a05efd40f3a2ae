"""Tests the summary of an agent: one row for each part, in the order of computation."""

import re

import gymnasium as gym
import keras
import pytest
import toys

import tf_reinforce as tfr
from tf_reinforce import agent as agents

Box, Dict, Discrete = gym.spaces.Box, gym.spaces.Dict, gym.spaces.Discrete
ROW = re.compile(r"│ *(.*?) *│ *(.*?) *│ *(.*?) *│")


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """Keras and rich read the width of the terminal from `COLUMNS`."""
    monkeypatch.setenv("COLUMNS", "160")


def rows(agent, **options):
    """Returns a tuple of name, output shape and number of weights for each row."""
    texts = []
    agent.summary(
        print_fn=lambda text, **_: texts.append(text), line_length=150, **options
    )
    return ROW.findall("".join(texts))


def test_summary_lists_the_parts_with_shapes_and_numbers_of_weights():
    """The policy has 3·4 + 4 + 4·1 + 1 weights, the value network as many."""
    agent = agents.Reinforce.for_env(
        "Pendulum-v1",
        hidden=(4,),
        baseline={"kind": "value", "hidden": [4]},
        normalize_observations=True,
        scale_rewards=True,
        scale_advantages="running",
    )
    parts = [(re.sub(r"(_\d+)? \(", " (", name), *more) for name, *more in rows(agent)]
    assert parts == [
        ("running_normalization (RunningNormalization)", "(None, 3)", "17"),
        ("policy (Functional)", "(None, 1)", "21"),
        ("gaussian (Gaussian)", "(None, 1)", "1"),
        ("value (Value)", "(None)", "21"),
        ("reward_scale (RunningScale)", "?", "3"),
        ("advantage_scale (RunningScale)", "?", "3"),
    ]


def test_expanded_summary_shows_the_value_network_below_the_baseline():
    agent = agents.Reinforce.for_env("CartPole-v1", hidden=(5,), baseline="value")
    names = [name for name, *_ in rows(agent, expand_nested=True)]
    start = next(i for i, name in enumerate(names) if "(Value)" in name)
    assert names[start + 1] == "└ value_network (Functional)"
    assert any("value_network.hidden_0" in name for name in names[start + 2 :])
    assert any(" policy.hidden_0 (Dense)" in name for name in names[:start])


def test_summary_of_nested_spaces_shows_nested_shapes_and_the_heads_inside():
    space = Dict(image=Box(0, 1, (2, 3)), number=Discrete(4))

    class Nested(toys.Observing):
        action_space = Dict(gear=Discrete(3), wheel=Box(-1, 1, (2,)))

    agent = agents.Reinforce.for_env(
        lambda: Nested(space), hidden=(), normalize_observations=True
    )
    shapes = {
        re.search(r"\((\w+)\)", name)[1]: shape
        for name, shape, _ in rows(agent, expand_nested=True)
    }
    assert shapes["RunningNormalization"] == "{image: (None, 2, 3), number: (None)}"
    assert shapes["Composite"] == "{gear: (None), wheel: (None, 2)}"
    assert shapes["Categorical"] == "(None)" and shapes["Gaussian"] == "(None, 2)"


def test_summary_before_build_omits_the_unknown_head():
    agent = tfr.Reinforce(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]))
    (policy, *_), (baseline, shape, weights) = rows(agent)
    assert "(Sequential)" in policy and "(LeaveOneOut)" in baseline
    assert (shape, weights) == ("?", "0 (unbuilt)")


def test_head_comes_before_the_baseline_if_it_was_made_by_fit():
    agent = tfr.Reinforce(keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)]))
    agent.compile("sgd")
    agent.fit(toys.Clock, epochs=1, episodes_per_epoch=2, verbose=0)
    kinds = [re.search(r"\((\w+)\)", name)[1] for name, *_ in rows(agent)]
    assert kinds == ["Sequential", "Categorical", "LeaveOneOut"]


@pytest.mark.parametrize("baseline", ["moving_average", "time_step", "mean", None])
def test_summary_counts_all_weights_for_every_baseline(baseline):
    agent = agents.Reinforce.for_env("CartPole-v1", hidden=(), baseline=baseline)
    counts = [int(count.replace(",", "")) for *_, count in rows(agent)]
    assert sum(counts) + 3 == agent.count_params()  # and three counters


@pytest.mark.slow
def test_keras_draws_the_layers_of_policy_and_value_network():
    """`plot_model` additionally needs the program Graphviz."""
    pytest.importorskip("pydot")
    agent = agents.Reinforce.for_env("CartPole-v1", hidden=(5,), baseline="value")
    for model in (agent.policy, agent.baseline.model):
        drawn = keras.utils.model_to_dot(model, show_shapes=True).to_string()
        assert ".hidden_0" in drawn and "Dense" in drawn
