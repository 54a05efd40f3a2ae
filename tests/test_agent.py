"""Tests that the agent trains, evaluates, predicts and logs as a Keras model does."""

import warnings

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import toys

import tf_reinforce as tfr
from tf_reinforce import heads


def dense(*layers, inputs=1, outputs=2, **kwargs):
    last = keras.layers.Dense(outputs, bias_initializer="normal", **kwargs)
    return keras.Sequential([keras.Input((inputs,)), *layers, last])


def clock_agent(*layers, optimizer=None, **settings):
    settings = {"head": heads.Categorical(2), **settings}
    agent = tfr.Reinforce(dense(*layers), **settings)
    agent.compile(optimizer=optimizer or keras.optimizers.SGD(1.0))
    return agent


def record():
    """Returns three episodes of at most five steps."""
    rng = np.random.default_rng(0)
    return tfr.Episodes(
        rng.normal(size=(6, 3, 1)).astype("float32"),
        rng.integers(2, size=(5, 3)).astype("int32"),
        rng.normal(size=(5, 3)),
        np.array([5, 2, 3], "int32"),
        np.array([True, False, True]),
    )


def numbers(variables):
    return [np.array(v) for v in variables]


def same_bits(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def fit(agent, env=toys.Clock, epochs=2, **options):
    options = {"episodes_per_epoch": 3, "verbose": 0, **options}
    return agent.fit(env, epochs=epochs, **options).history


@pytest.fixture(scope="module")
def cartpole():
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(8,))
    fit(agent, "CartPole-v1")
    return agent


# Methods of a Keras model


def test_predict_and_call_return_the_policy_outputs(cartpole):
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    outputs = cartpole(observations).numpy()
    np.testing.assert_array_equal(outputs, cartpole.policy(observations).numpy())
    predicted = cartpole.predict(observations, verbose=0)
    np.testing.assert_allclose(predicted, outputs, rtol=1e-6, atol=1e-7)


def test_update_applies_gradients_and_gradients_changes_no_variable():
    agent, episodes = clock_agent(), record()
    agent.build((None, 1))
    before = numbers(agent.variables)
    gradients, baseline_gradients, logs = agent.gradients(episodes)
    assert same_bits(before, numbers(agent.variables)) and baseline_gradients == []
    weights = numbers(agent.policy_variables)
    assert agent.update(episodes)["loss"] == pytest.approx(float(logs["loss"]))
    for old, new, slope in zip(weights, agent.policy_variables, gradients, strict=True):
        np.testing.assert_allclose(old - new.numpy(), slope, atol=1e-6)
    assert (agent.updates, agent.episodes_seen, agent.env_steps) == (1, 3, 10)


def test_update_uses_normalizer_and_values_of_the_acting_policy():
    """The second update uses the normalizer and the values after the first update."""
    critic = tfr.baselines.Value(dense(outputs=1), keras.optimizers.SGD(1.0))
    agent = clock_agent(baseline=critic, normalize_observations=True)
    agent.update(record())
    episodes = record()._replace(observations=3 * record().observations)
    plain = tfr.Reinforce(agent.policy, agent.head, critic)
    normal = episodes._replace(observations=agent.normalizer(episodes.observations))
    gradients, baseline_gradients, _ = plain.gradients(normal)
    trained = [*agent.policy_variables, *critic.trainable_variables]
    before = numbers(trained)
    agent.update(episodes)
    slopes = [*gradients, *baseline_gradients]
    for old, new, slope in zip(before, trained, slopes, strict=True):
        np.testing.assert_allclose(old - new.numpy(), slope, atol=1e-5)


def test_dropout_and_batch_norm_warn_once_and_run_in_inference_mode():
    layers = keras.layers.Dropout(0.5), keras.layers.BatchNormalization()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agent = clock_agent(keras.layers.Dense(4), *layers)
        fit(agent)
        fit(agent)
    said = [str(w.message) for w in caught if "inference mode" in str(w.message)]
    assert len(said) == 1 and all(layer.name in said[0] for layer in layers)
    observations = np.ones([3, 1], "float32")
    expected = agent.policy(observations, training=False)
    np.testing.assert_array_equal(agent(observations, training=True), expected)
    np.testing.assert_array_equal(layers[1].moving_mean, np.zeros(4))
    first, again = (numbers(agent.gradients(record())[0]) for _ in range(2))
    assert same_bits(first, again)


@pytest.mark.parametrize(
    "argument",
    [{"loss": "mse"}, {"loss_weights": [1.0]}, {"metrics": []}, {"run_eagerly": True}],
    ids=str,
)
def test_compile_argument_without_effect_raises(argument):
    """The agent keeps its previous optimizer after the error."""
    agent = clock_agent()
    optimizer = agent.optimizer
    (name,) = argument
    with pytest.raises(ValueError, match=f"`{name}` .* no effect .*{name}="):
        agent.compile("adam", **argument)
    assert agent.optimizer is optimizer


def test_compile_accepts_keras_defaults_and_saves_them(tmp_path):
    """Keras would save `jit_compile="auto"` as its own decision, True or False."""
    agent = clock_agent()
    defaults = dict(loss=None, metrics=None, weighted_metrics=None, loss_weights=None)
    defaults |= dict(run_eagerly=False, jit_compile="auto", auto_scale_loss=False)
    agent.compile(keras.optimizers.SGD(0.5), steps_per_execution=3, **defaults)
    fit(agent, epochs=1)
    assert agent.get_compile_config()["jit_compile"] == agent.jit_compile == "auto"
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    assert loaded.steps_per_execution == 3
    assert float(loaded.optimizer.learning_rate) == 0.5
    assert loaded.jit_compile == "auto"
    agent.compile(jit_compile=False)
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    assert loaded.jit_compile is False


# Training


def test_second_fit_makes_no_new_trace_and_no_new_conversion(cartpole, monkeypatch):
    fit(cartpole, "CartPole-v1", epochs=3)
    traced = []
    batch = cartpole.trainer.estimator.batch
    monkeypatch.setattr(
        cartpole.trainer.estimator, "batch", lambda *a: traced.append(a) or batch(*a)
    )
    fit(cartpole, "CartPole-v1", epochs=3)
    cartpole.update(fitting_record(cartpole))
    assert not traced
    assert cartpole.trainer.programs["acting", False].runtime == "litert"


def fitting_record(agent):
    size = agent.observation_space.shape[0]
    observations = np.zeros((3, 2, size), "float32")
    actions, rewards = np.zeros((2, 2), "int32"), np.ones((2, 2))
    return tfr.Episodes(observations, actions, rewards, [2, 1], [True, True])


FIXED = ["policy", "head", "gamma", "scale_rewards", "passes"]


@pytest.mark.parametrize("name", sweeps.some(FIXED, always=["head", "gamma"]))
def test_fixed_attribute_raises_if_set_after_the_build(name):
    """Graphs, statistics and files already contain the old value of the attribute."""
    agent = clock_agent()
    before = getattr(agent, name)
    setattr(agent, name, before)  # not built yet
    agent.update(record())
    with pytest.raises(AttributeError, match=f"`{name}` of a Rein.* is fixed .*another"):
        setattr(agent, name, before)
    assert getattr(agent, name) is before


class Wide(toys.Clock):
    observation_space = gym.spaces.Box(-1, 1, (2,))


def test_failed_build_can_be_repeated_with_another_environment(tmp_path):
    """Statistics and weights of the first build must not prevent the second build."""

    scales = dict(scale_rewards=True, normalize_observations=True)
    agent = clock_agent(keras.layers.Dropout(0.5), **scales)
    with pytest.raises(ValueError, match="does not take the observations"):
        agent.collect(Wide, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="inference mode"):
            agent.collect(toys.Clock, 1)
    assert (agent.observation_space, agent.action_space) == (None, None)
    assert not agent.built
    with pytest.warns(UserWarning, match="inference mode"):
        fit(agent, epochs=1)
    agent.save(tmp_path / "agent.keras")
    with pytest.warns(UserWarning, match="inference mode"):
        assert tfr.load(tmp_path / "agent.keras").updates == 1


def test_agent_built_by_shape_refuses_observations_of_another_shape():
    agent = clock_agent()
    agent.build((None, 1))
    with pytest.raises(ValueError, match=r"Expected: \(1,\). Received: \(2,\)"):
        agent.collect(Wide, 1)
    assert agent.observation_space is None


# Spaces


class Seen(toys.Clock):
    """A `Clock` with observations from any space."""

    def __init__(self, observation_space, action_space=toys.Clock.action_space):
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space

    def _observation(self):
        self.observation_space.seed(self.now)
        return self.observation_space.sample()


BOX = gym.spaces.Box(-1.0, np.array([1, 2, 3], "float32"), (3,))
PAIR = gym.spaces.Dict(place=BOX, speed=gym.spaces.Box(-1.0, 1.0, (2,), np.float64))


def test_functional_policy_receives_dict_observations_by_input_name():
    """The inputs are not in alphabetical order, so that positions would not match."""
    speed, place = keras.Input((2,), name="speed"), keras.Input((3,), name="place")
    both = keras.layers.Concatenate()([speed, place])
    policy = keras.Model([speed, place], keras.layers.Dense(2)(both))
    agent = tfr.Reinforce(policy)
    agent.compile(optimizer="sgd")
    fit(agent, lambda: Seen(PAIR))
    observation = {key: value[None] for key, value in PAIR.sample().items()}
    flat = np.concatenate([observation["speed"], observation["place"]], axis=1)
    kernel, bias = policy.get_weights()
    np.testing.assert_allclose(agent(observation), flat @ kernel + bias, rtol=1e-5)


# Acting


def test_training_samples_actions_and_evaluation_takes_the_mode():
    """Arm 1 has probability 3/4 and return 1. The tolerance is six standard errors."""
    layer = keras.layers.Dense(
        2,
        kernel_initializer="zeros",
        bias_initializer=lambda shape, dtype: np.log([1.0, 3.0]).astype(dtype),
    )
    agent = tfr.Reinforce(keras.Sequential([keras.Input((1,)), layer]))
    agent.compile(optimizer=keras.optimizers.SGD(0.0))
    history = fit(
        agent, toys.Bandit, 1, episodes_per_epoch=400, validation_env=toys.Bandit
    )
    error = np.sqrt(0.75 * 0.25 / 400)
    assert abs(history["episode_return"][0] - 0.75) < 6 * error
    assert history["val_episode_return"] == [1.0]
    assert agent.evaluate(toys.Bandit, 400)["episode_return"] == 1.0
    drawn = agent.evaluate(toys.Bandit, 400, deterministic=False)["episode_return"]
    assert abs(drawn - 0.75) < 6 * error
    observations = np.ones([400, 1], "float32")
    assert abs(agent.act(observations, seed=0).mean() - 0.75) < 6 * error
    assert agent.act(observations, deterministic=True).all()


def test_evaluate_returns_statistics_and_changes_no_variable(cartpole):
    variables = [*cartpole.variables, *cartpole.optimizer.variables]
    before = numbers(variables)
    figures = cartpole.evaluate("CartPole-v1", 5, seed=3)
    assert set(figures) == {
        "episode_return", "episode_return_min", "episode_return_max",
        "episode_return_std", "episode_length", "episodes", "env_steps",
    }  # fmt: skip
    assert figures["episodes"] == 5 and all(type(x) is float for x in figures.values())
    assert figures == cartpole.evaluate("CartPole-v1", 5, seed=3, num_envs=2)
    assert figures != cartpole.evaluate("CartPole-v1", 5, seed=4)
    assert figures != cartpole.evaluate("CartPole-v1", 5, deterministic=False, seed=3)
    assert same_bits(before, numbers(variables))


def test_act_returns_actions_in_the_units_and_type_of_the_space():
    space = gym.spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 0.5]), dtype=np.float64)
    agent = tfr.Reinforce.for_env(lambda: Seen(BOX, space), hidden=())
    actions = agent.act(np.ones([500, 3], "float32"), seed=0)
    assert actions.shape == (500, 2) and actions.dtype == np.float64
    assert all(space.contains(action) for action in actions)
    assert {-1.0, 1.0} <= set(actions[:, 0])  # clipped at both bounds
    start = tfr.Reinforce.for_env(toys.Lengths, hidden=())  # Discrete(3, start=5)
    actions = start.act(np.ones([50, 2], "float32"), seed=0)
    assert actions.shape == (50,) and actions.dtype == np.int64
    assert set(actions) == {5, 6, 7}


def test_act_with_the_same_seed_returns_the_same_actions(cartpole):
    observations = np.zeros([200, 4], "float32")
    first = cartpole.act(observations, seed=np.int32(5))
    np.testing.assert_array_equal(first, cartpole.act(observations, seed=5))
    assert (first != cartpole.act(observations, seed=6)).any()
    assert (cartpole.act(observations) != cartpole.act(observations)).any()
    greedy = cartpole.act(observations, deterministic=True)
    assert (greedy == np.argmax(cartpole(observations), axis=1)).all()


def test_actions_have_the_type_of_the_space_given_after_the_build():
    policy = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    agent = tfr.Reinforce(policy, heads.Gaussian(1, low=0, high=3, integer=True))
    agent.build((None, 3))
    seen = np.zeros((2, 3), "float32")
    assert agent.act(seen, deterministic=True).dtype == np.float32
    agent.build_for_spaces(
        gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(0, 3, (1,), np.int16)
    )
    assert agent.act(seen, deterministic=True).dtype == np.int16
