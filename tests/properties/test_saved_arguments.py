"""Tests that a file keeps every argument of every class.

The arguments come from the signatures. Each has a value in `CASES` that is not its
default: an argument without one fails the test, and so does a class.
"""

import functools
import importlib
import inspect
import pkgutil

import keras
import numpy as np
import parts
import pytest
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce.functional import losses
from tf_reinforce.policies import default_policy
from tf_reinforce.policies import normalization
from tf_reinforce.sampling import estimators

# The arguments of `keras.layers.Layer` that Keras saves.
OF_KERAS = {"name": "other", "trainable": False, "dtype": "float64"}


def register(function):
    return keras.saving.register_keras_serializable("saved_arguments")(function)


def schedule():
    return keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)


def adam():
    return keras.optimizers.Adam(0.03, beta_1=0.8)


def dense(outputs, inputs=2, dtype="float32"):
    array = keras.Input((inputs,), dtype=dtype)
    hidden = keras.layers.Dense(4, "tanh", dtype=dtype)(array)
    return keras.Model(array, keras.layers.Dense(outputs, dtype=dtype)(hidden))


def windowed(outputs):
    """Reads the last two observations, actions and rewards."""
    inputs = {
        "observations": keras.Input((2, 2), name="observations"),
        "actions": keras.Input((2,), dtype="int64", name="actions"),
        "rewards": keras.Input((2,), name="rewards"),
    }
    actions = keras.layers.Embedding(3, 2)(inputs["actions"])
    parts = (
        inputs["observations"],
        actions,
        keras.layers.Reshape((2, 1))(inputs["rewards"]),
    )
    window = keras.layers.Flatten()(keras.layers.Concatenate()(parts))
    return keras.Model(inputs, keras.layers.Dense(outputs)(window))


def sampling(outputs=3):
    inputs = keras.Input((2,))
    sample = tfr.layers.Sample(heads.Categorical(outputs), seed=5)
    return keras.Model(inputs, sample(dense(outputs)(inputs)))


@register
def distance(targets, choices):
    return (tf.cast(targets, tf.float32) - tf.cast(choices, tf.float32)) ** 2


@register
def preference(inputs, choices):
    return inputs[:, 0] * choices


def cases_of(example):
    """Returns a function that makes the cases; the last has the arguments of Keras."""
    return lambda: [*example.cases()[:-1], {**example.cases()[-1], **OF_KERAS}]


def agents():
    head = heads.Categorical(3, start=2)
    numbers = dict(gamma=0.5, discount_states=True, scale_rewards=True)
    numbers |= dict(mean_over="steps", on_truncation="terminal", name="other")
    numbers |= dict(normalize_observations=True, ratio_clip=1.5)
    value = baselines.Value(dense(1), adam(), scale=3.0)
    bootstrap = dict(gae_lambda=0.7, scale_advantages="running", baseline=value)
    steps = dict(minibatch_size=3, passes=2, max_kl=3.0)
    return [
        {"policy": dense(3), "head": head, **numbers, **bootstrap, **steps},
        {
            **{"policy": dense(3), "head": head, **numbers, "baseline": "mean"},
            **{
                "returns": "whole",
                "entropy_coef": schedule(),
                "action_mask": "info/mask",
            },
            **{"ratio_clip": (0.1, 0.3), "scale_advantages": "batch"},
        },
        {
            **{"policy": windowed(3), "head": head, **numbers, **steps, "context": 2},
            "baseline": baselines.Value(windowed(1), adam(), scale=3.0),
            "context_inputs": ("observations", "actions", "rewards"),
        },
    ]


def score_functions():
    options = dict(samples=3, entropy_coef=0.2, name="other", estimator="arm")
    value = baselines.Value(dense(1), adam(), minibatch_size=4)
    average = baselines.MovingAverage(0.3)
    return [
        {"model": sampling(), "loss": distance, "baseline": average, **options},
        {"model": sampling(), "reward": preference, "baseline": value, **options},
    ]


SETTINGS = {"limit": 9, "k": 3, "temperature": 0.3, "scale": 0.4}


def estimator_cases(cls):
    names = SETTINGS.keys() & {*cls.argument_names}
    return [{**{name: SETTINGS[name] for name in names}, **OF_KERAS}]


CASES = {
    **{x.kind: cases_of(x) for x in (parts.HEADS | parts.BASELINES).values()},
    losses.Reinforce: lambda: [
        dict(head=heads.Gaussian(2, initial_scale=0.3), reduction="sum", name="other")
    ],
    tfr.layers.CausalSelfAttention: lambda: [
        dict(heads=2, key_dim=4, window=3, gate="gru", seed=5, **OF_KERAS)
    ],
    default_policy.OneHot: lambda: [dict(sizes=[2, 3], starts=[1, -1], **OF_KERAS)],
    normalization.RunningNormalization: lambda: [dict(epsilon=0.1, clip=3.0, **OF_KERAS)],
    normalization.RunningScale: lambda: [dict(centered=True, epsilon=0.1, **OF_KERAS)],
    tfr.layers.Sample: lambda: [
        dict(head=heads.Categorical(3, start=1), seed=4, **OF_KERAS),
        dict(
            **dict(head=heads.Categorical(3, start=1), seed=4, one_hot=True),
            **dict(estimator=estimators.Exact(9), **OF_KERAS),
        ),
    ],
    **{x: functools.partial(estimator_cases, x) for x in estimators.NAMES.values()},
    estimators.Relax: lambda: [dict(model=dense(1), **OF_KERAS)],
    tfr.Reinforce: agents,
    tfr.ScoreFunction: score_functions,
}
# `tests/sequences/test_sequence_options.py` has the values of this class, which needs
# KerasHub.
ELSEWHERE = {"SequenceReinforce"}
WHOLE = tfr.Reinforce, tfr.ScoreFunction


def arguments(cls):
    """Returns the parameters of a class and, through `**kwargs`, of its bases."""
    result = {}
    for base in cls.__mro__:
        if base.__module__.startswith("keras.") or "__init__" not in vars(base):
            if base.__module__.startswith("keras."):
                is_layer = issubclass(cls, keras.layers.Layer)
                return {**dict.fromkeys(OF_KERAS if is_layer else ()), **result}
            continue
        signature = inspect.signature(base.__init__)
        named = {k: x for k, x in signature.parameters.items() if k != "self"}
        kinds = {x.kind for x in named.values()}
        result = {**{k: x for k, x in named.items() if k != "kwargs"}, **result}
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            return result
    return result


def registered():
    for module in pkgutil.walk_packages(tfr.__path__, "tf_reinforce."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = keras.saving.get_custom_objects()
    return {x for name, x in found.items() if name.startswith("tf_reinforce>")}


def test_every_class_and_every_argument_has_another_value_than_its_default():
    classes = {cls for cls in registered() if cls.__name__ not in ELSEWHERE}
    assert classes == {*CASES}
    for cls, make in CASES.items():
        cases, missing = make(), []
        for name, parameter in arguments(cls).items():
            if cls in WHOLE and name in ("trainable", "dtype", "options"):
                continue  # a model of which nothing is trained has no next update
            default = getattr(parameter, "default", None)
            values = [case[name] for case in cases if name in case]
            if not any(plain(x) != plain(default) for x in values):
                missing.append(name)
        assert not missing, f"add to CASES[{cls.__name__}] other values of {missing}"


def plain(value):
    """Returns layers and optimizers as configs, and arrays as lists, to compare them."""
    if isinstance(value, (keras.layers.Layer, keras.optimizers.Optimizer)):
        return plain(keras.saving.serialize_keras_object(value))
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
        return plain(value.get_config())
    if isinstance(value, dict):
        return {key: plain(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(x) for x in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def attributes(part, case):
    """Returns the attributes that have the names of arguments."""
    names = [name for name in case if name not in ("dtype", "loss", "head")]
    return {name: plain(getattr(part, name)) for name in names}


def head_results(head):
    """Returns what a head computes from outputs."""
    outputs = np.random.default_rng(0).normal(size=(5, head.outputs_size))
    outputs = tf.constant(outputs, head.compute_dtype)
    if not head.built:
        head.build((None, head.outputs_size))
    modes = head.mode(outputs)
    numbers = head.to_environment(modes), *head.log_prob_and_entropy(outputs, modes)
    shift, parameters = head.output_scaling(), [head.parameters(outputs)]
    return [np.array(x) for x in keras.tree.flatten([*numbers, *shift, *parameters])]


def copy_twice(part):
    """Returns a copy from a config, which another copy has used and left unchanged."""
    config = part.get_config()
    before = plain(config)
    type(part).from_config(config)
    copy = type(part).from_config(config)
    assert plain(config) == before
    return copy


PARTS = [(cls, n) for cls in CASES if cls not in WHOLE for n in range(len(CASES[cls]()))]


@pytest.mark.parametrize("cls, number", PARTS)
def test_part_with_every_argument_equals_its_copy(cls, number):
    case = CASES[cls]()[number]
    part = cls(**case)
    config = keras.saving.serialize_keras_object(part)
    copy = keras.saving.deserialize_keras_object(config)
    assert plain(keras.saving.serialize_keras_object(copy)) == plain(config)
    if issubclass(cls, keras.layers.Layer):
        assert copy.dtype_policy.name == part.dtype_policy.name
        assert attributes(part, case) == attributes(copy, case)
    again = keras.saving.deserialize_keras_object(config)
    assert plain(keras.saving.serialize_keras_object(again)) == plain(config)
    if isinstance(part, heads.Head):
        for one, other in zip(head_results(part), head_results(copy), strict=True):
            np.testing.assert_array_equal(one, other)


def bits(model):
    owners = [model, model.optimizer, getattr(model.baseline, "optimizer", None)]
    return [np.array(v) for owner in owners if owner for v in owner.variables]


def assert_equal_bits(one, other):
    for x, y in zip(bits(one), bits(other), strict=True):
        np.testing.assert_array_equal(x, y)


def record(masked):
    rng = np.random.default_rng(0)
    masks = np.ones((4, 3, 3), "int8") if masked else None
    actions, rewards = rng.integers(3, size=(4, 3)), rng.normal(size=(4, 3))
    lengths, terminated = np.array([4, 1, 3]), np.array([True, False, True])
    observations = rng.normal(size=(5, 3, 2)).astype("float32")
    actions = actions.astype("int32")
    return tfr.Episodes(observations, actions, rewards, lengths, terminated, masks)


@pytest.mark.parametrize("number", range(3))
def test_agent_with_every_argument_continues_from_its_file(number, tmp_path):
    case = agents()[number]
    agent = tfr.Reinforce(**case)
    assert attributes(agent, case) == attributes(copy_twice(agent), case)
    agent.compile(adam())
    agent.build((None, 2))
    episodes = record(case.get("action_mask") is not None)
    agent.update(episodes)
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    assert plain(loaded.get_config()) == plain(agent.get_config())
    for each in (agent, loaded):
        logs = each.update(episodes, seed=3)
    assert np.isfinite(logs["loss"])
    assert_equal_bits(agent, loaded)


@pytest.mark.slow
def test_agent_for_env_trains_like_its_copy(tmp_path):
    """Linear rates, and the arguments of `fit` of a preset and of the environment."""
    rates = [dict(first=0.1 * n, last=0.01) for n in (1, 2)]
    agent = tfr.Reinforce.for_env(
        "CartPole-v1",
        hidden=(3,),
        seed=7,
        preset="CartPole-v1",
        learning_rate=rates[0],
        baseline={"kind": "value", "learning_rate": rates[1]},
        env_kwargs={"sutton_barto_reward": True},
    )
    agent.save(tmp_path / "agent.keras")
    options = dict(steps=350, max_episode_steps=20, verbose=0)
    both = agent, tfr.load(tmp_path / "agent.keras")
    first, second = (x.fit("CartPole-v1", **options).history for x in both)
    assert first.keys() == second.keys() and first["episodes"] == [16, 16]
    for key in first.keys() - {"steps_per_second", "collect_seconds", "update_seconds"}:
        assert first[key] == second[key], key
    assert min(first["episode_return"]) < 0  # because of the argument of the environment
    assert first["learning_rate"][0] > 2 * first["learning_rate"][1]
    assert_equal_bits(*both)
    rates = [float(x.baseline.optimizer.learning_rate.numpy()) for x in both]
    assert rates[0] == rates[1] < 0.1


@pytest.mark.parametrize("number", range(2))
def test_score_function_with_every_argument_continues_from_its_file(number, tmp_path):
    case = score_functions()[number]
    model = tfr.ScoreFunction(**case)
    model.compile(adam(), run_eagerly=True)
    data = np.random.default_rng(0).normal(size=(6, 2)), np.arange(6)
    data = data if "loss" in case else data[:1]
    options = dict(batch_size=6, shuffle=False, verbose=0)
    model.fit(*data, **options)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert plain(loaded.get_config()) == plain(model.get_config())
    names = {name: case[name] for name in ("samples", "entropy_coef", "name", "baseline")}
    assert attributes(model, names) == attributes(loaded, names)
    assert loaded.run_eagerly
    for each in (model, loaded):
        each.fit(*data, **options)
    assert_equal_bits(model, loaded)
