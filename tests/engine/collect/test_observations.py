"""Tests observations of every space, from the environment to a custom policy."""

import collections

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce.data import spaces
from tf_reinforce.data import tensor_specs
from tf_reinforce.engine.collect import env_outputs
from tf_reinforce.engine.collect import results

Box, Discrete = gym.spaces.Box, gym.spaces.Discrete
FEW = {"epochs": 2, "episodes_per_epoch": 3, "num_envs": 2, "verbose": 0}
PAIR = gym.spaces.Dict(gear=Discrete(5), speed=Box(-1, 1, (2,)))
IMAGE = Box(0, 255, (8, 8, 1), np.uint8)


# Reading observations


def read_observation(space, observation):
    """Returns the recorded arrays of one observation, as a list."""
    reader = env_outputs.ObservationReader(space, "float32")
    leaves = keras.tree.flatten(tensor_specs.observation_spec(space, "float32"))
    rows = [np.zeros((1, *x.shape), x.dtype.as_numpy_dtype) for x in leaves]
    reader(0, observation, rows)
    return [row[0] for row in rows]


KINDS = [int, np.int64, np.int32, np.uint8, np.array]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_discrete_observation_may_have_any_integer_type(kind):
    (value,) = read_observation(Discrete(4, start=2), kind(5))
    assert value == 5 and value.dtype == "int64"


@pytest.mark.parametrize("kind", [bool, np.bool_])
def test_discrete_observation_of_two_values_may_be_a_bool(kind):
    hand = gym.spaces.Tuple([Discrete(32), Discrete(2)])
    assert read_observation(hand, (21, kind(True))) == [21, 1]


@pytest.mark.parametrize("wrong", [1, 6, -1, np.int64(6), np.array(1), True, 2**70])
def test_discrete_observation_outside_its_space_raises(wrong):
    with pytest.raises(
        env_outputs.IndexedFault, match=r"is not in Discrete\(4, start=2\)"
    ):
        read_observation(Discrete(4, start=2), wrong)


@pytest.mark.parametrize("wrong", [2.0, "2", None, np.float32(2), np.array([2]), [2]])
def test_discrete_observation_that_is_not_an_integer_raises(wrong):
    with pytest.raises(env_outputs.IndexedFault, match="an integer in Discrete"):
        read_observation(Discrete(4), wrong)


@pytest.mark.parametrize(
    "space, right, wrong",
    [
        (gym.spaces.MultiDiscrete([3, 2], start=[1, 0]), [3, 1], [4, 1]),
        (gym.spaces.MultiDiscrete([3, 2], start=[1, 0]), [1, 0], [0, 0]),
        (gym.spaces.MultiDiscrete([3, 2], np.int8), [2, 1], [256, 0]),
        (gym.spaces.MultiBinary(2), [0, 1], [0, 2]),
    ],
)
def test_multi_discrete_and_binary_observations_outside_the_space_raise(
    space, right, wrong
):
    """A cast of 256 to eight bits would give 0, which is inside the space."""
    (value,) = read_observation(space, np.array(right))
    assert value.tolist() == right and value.dtype == space.dtype
    with pytest.raises(env_outputs.IndexedFault, match="is not in Multi"):
        read_observation(space, np.array(wrong))


def test_nested_observations_are_read_by_key_or_index():
    """Some environments return an OrderedDict for a Dict space, or a list for a Tuple
    space.
    """
    space = gym.spaces.Dict(b=Discrete(9), a=gym.spaces.Tuple([Discrete(9)] * 2))
    for observation in (
        {"b": 3, "a": (1, 2)},
        {"a": [1, 2], "b": 3},
        collections.OrderedDict(b=3, a=(1, 2)),
    ):
        assert read_observation(space, observation) == [1, 2, 3]


def test_error_names_the_difference_between_observation_and_space():
    with pytest.raises(
        env_outputs.IndexedFault, match=r"keys \['gear', 'speed'\].*dict .*'gear'\]"
    ):
        read_observation(PAIR, {"gear": 1})
    pair = gym.spaces.Tuple([Discrete(2)] * 2)
    with pytest.raises(
        env_outputs.IndexedFault, match="tuple of 2 parts.*a tuple of 3 parts"
    ):
        read_observation(pair, (0, 0, 0))
    with pytest.raises(env_outputs.IndexedFault, match="tuple of 2 parts.*a int"):
        read_observation(pair, 3)


@pytest.mark.parametrize("mode", gym.vector.AutoresetMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", ["FrozenLake-v1", "Blackjack-v1"])
def test_discrete_observations_of_vector_envs_are_int64_inside_the_space(name, mode):
    env = gym.make_vec(
        name,
        num_envs=3,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": mode},
    )
    agent = tfr.Reinforce.for_env(name, hidden=(4,))
    episodes = agent.collect(env, 12)
    env.close()
    parts = keras.tree.flatten(spaces.to_nest(agent.observation_space))
    for space, array in zip(parts, keras.tree.flatten(episodes.observations)):
        assert array.dtype == "int64"
        assert all(map(space.contains, array.ravel()))


class ChangesObservations(gym.vector.SyncVectorEnv):
    """Three environments whose observations are changed by a function after each step."""

    def __init__(self, space, change):
        super().__init__([lambda: toys.Observing(space)] * 3)
        self.change = change

    def step(self, actions):
        observations, *rest = super().step(actions)
        return self.change(observations), *rest


def set_second(array, value):
    """Sets the second entry of an array, and returns the array."""
    array[1] = value
    return array


@pytest.mark.parametrize(
    "space, change, message",
    [
        (
            Discrete(5),
            lambda x: set_second(x, 5),
            "Environment 1, .*observation 5 is not in",
        ),
        (Discrete(5, start=2), lambda x: x - 5, "is not in Discrete.5, start=2"),
        (
            gym.spaces.MultiDiscrete([3, 2]),
            lambda x: set_second(x, 2),
            r"1, .*\[2, 2\] is not in",
        ),
        (
            gym.spaces.MultiBinary(2),
            lambda x: set_second(x, -1),
            r"1, .*\[-1, -1\] is not in",
        ),
        (Discrete(5), lambda x: x / 2, "of type float64. Expected: int64"),
        (PAIR, lambda x: {"gear": x["gear"]}, "a dict with the keys .*'gear', 'speed'"),
        (PAIR, lambda x: tuple(x.values()), "Received: a tuple of 2 parts"),
    ],
    ids=["outside", "below", "multi", "flag", "fraction", "key", "kind"],
)
def test_vector_observation_outside_its_space_raises(space, change, message):
    agent = tfr.Reinforce.for_env(lambda: toys.Observing(space), hidden=())
    with pytest.raises(results.EnvironmentFault, match=message):
        agent.collect(ChangesObservations(space, change), 6)


def test_vector_observation_dict_in_another_order_is_read_by_key():
    """Keras keeps the order of an OrderedDict, but the recorded arrays are sorted by
    key.
    """
    space = gym.spaces.Dict(a=Discrete(9), b=Discrete(9, start=9))

    def reverse_keys(observations):
        return collections.OrderedDict(sorted(observations.items(), reverse=True))

    agent = tfr.Reinforce.for_env(lambda: toys.Observing(space), hidden=())
    episodes = agent.collect(ChangesObservations(space, reverse_keys), 6)
    assert episodes.observations["a"].max() < 9 <= episodes.observations["b"].min()


@pytest.mark.slow
def test_observation_keys_may_be_any_strings(tmp_path):
    names = ["a b", "é", "1", "c.d", "x-y", "action", "seed"]
    space = gym.spaces.Dict(
        {
            name: (IMAGE, Discrete(3), Box(0, 9, (2,), int))[i % 3]
            for i, name in enumerate(names)
        }
    )
    agent = tfr.Reinforce.for_env(lambda: toys.Observing(space), hidden=())
    agent.fit(lambda: toys.Observing(space), **FEW)
    agent.save(tmp_path / "agent.keras")
    agent.export(tmp_path / "policy")
    batch = spaces.sample_observations(space, "float32", 4, np.random.default_rng(0))
    exported = tf.saved_model.load(tmp_path / "policy")
    exported_actions = exported.act(keras.tree.map_structure(tf.constant, batch))[
        "action"
    ]
    loaded = tfr.load(tmp_path / "agent.keras")
    np.testing.assert_array_equal(loaded.act(batch, deterministic=True), exported_actions)


# Custom policies


@keras.saving.register_keras_serializable("test_observations")
class RequiresDtype(keras.layers.Layer):
    """Raises if its inputs do not have the given dtype."""

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.kind = kind

    def call(self, inputs):
        if keras.backend.standardize_dtype(inputs.dtype) != self.kind:
            raise TypeError(f"Expected inputs of {self.kind}. Received: {inputs.dtype}")
        return inputs

    def get_config(self):
        return {**super().get_config(), "kind": self.kind}


def embedding_policy():
    """Returns a policy that embeds an integer observation, without one-hot vectors."""
    layers = RequiresDtype("int64"), keras.layers.Embedding(16, 4), keras.layers.Dense(2)
    return keras.Sequential([keras.Input((), dtype="int64"), *layers])


def image_policy():
    layers = (
        RequiresDtype("uint8"),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(3, 3, 2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(2),
    )
    return keras.Sequential([keras.Input(IMAGE.shape, dtype="uint8"), *layers])


def two_input_policy(arrange):
    """Returns a function that builds a policy with the inputs `arrange(gear, speed)`."""

    def make_policy():
        gear = keras.Input((), dtype="int64", name="gear")
        speed = keras.Input((2,), name="speed")
        embedded = keras.layers.Embedding(5, 3)(RequiresDtype("int64")(gear))
        both = keras.layers.Concatenate()([embedded, speed])
        return keras.Model(arrange(gear, speed), keras.layers.Dense(2)(both))

    return make_policy


POLICIES = {
    "choice": (Discrete(16), embedding_policy),
    "image": (IMAGE, image_policy),
    "dict": (PAIR, two_input_policy(lambda gear, speed: {"gear": gear, "speed": speed})),
    "dict, turned": (
        PAIR,
        two_input_policy(lambda gear, speed: {"speed": speed, "gear": gear}),
    ),
    "list": (PAIR, two_input_policy(lambda gear, speed: [gear, speed])),
    "list, turned": (PAIR, two_input_policy(lambda gear, speed: [speed, gear])),
    "tuple": (
        gym.spaces.Tuple([Discrete(5), Box(-1, 1, (2,))]),
        two_input_policy(lambda gear, speed: [gear, speed]),
    ),
    "tuple, turned": (
        gym.spaces.Tuple([Box(-1, 1, (2,)), Discrete(5)]),
        two_input_policy(lambda gear, speed: (speed, gear)),
    ),
}


def by_name(space, observations):
    """Returns the observations as keyword arguments of an exported signature."""
    names = keras.tree.flatten(spaces.names(spaces.to_nest(space)))
    arrays = keras.tree.flatten(observations)
    return {name: tf.constant(x) for name, x in zip(names, arrays, strict=True)}


ALWAYS_TESTED = ["dict, turned"]


@pytest.mark.parametrize("case", sweeps.some(POLICIES, always=ALWAYS_TESTED))
def test_custom_policy_gives_equal_actions_after_save_load_and_export(case, tmp_path):
    """The actions of the agent, the loaded agent and the exported policy are equal."""
    space, make = POLICIES[case]
    agent = tfr.Reinforce(make(), normalize_observations=case.endswith("turned"))
    agent.compile(keras.optimizers.Adam(0.1))
    agent.fit(lambda: toys.Observing(space), **FEW)
    assert agent.evaluate(lambda: toys.Observing(space), 3)["episode_return"] == 5.0
    assert {program.runtime for program in agent.trainer.collector.programs.values()} == {
        "litert"
    }
    observations = spaces.sample_observations(
        space, "float32", 6, np.random.default_rng(0)
    )
    actions = agent.act(observations, seed=3)
    agent.save(tmp_path / "agent.keras")
    agent.export(tmp_path / "policy")
    loaded = tfr.load(tmp_path / "agent.keras")
    np.testing.assert_array_equal(loaded.act(observations, seed=3), actions)
    np.testing.assert_array_equal(loaded(observations), agent(observations))
    exported = tf.saved_model.load(tmp_path / "policy").signatures["sample"]
    signature_inputs = by_name(space, observations)
    samples = exported(**signature_inputs, seed=tf.constant(3, tf.int64))
    np.testing.assert_array_equal(samples["action"], actions)
    loaded.fit(lambda: toys.Observing(space), **FEW)
    assert loaded.updates == 4


@pytest.mark.parametrize("case", [case for case in POLICIES if case.startswith("dict")])
def test_dict_observation_is_matched_to_inputs_by_name_in_any_order(case):
    """The arrays have different shapes and dtypes, so swapped inputs would raise."""
    space, make = POLICIES[case]
    listed = POLICIES["list, turned"][1]()
    model = make()
    model.set_weights(listed.get_weights())
    observations = spaces.sample_observations(
        space, "float32", 6, np.random.default_rng(0)
    )
    outputs = []
    for policy in (model, listed):
        agent = tfr.Reinforce(policy)
        agent.build_for_spaces(space, Discrete(2))
        outputs.append(agent(observations).numpy())
    np.testing.assert_array_equal(*outputs)


def test_arrays_of_equal_shape_are_matched_to_inputs_by_name():
    space = gym.spaces.Dict(left=Box(-1, 1, (2,)), right=Box(-1, 1, (2,)))
    left, right = (keras.Input((2,), name=name) for name in ("left", "right"))
    agent = tfr.Reinforce(keras.Model([right, left], left - 3 * right))
    agent.build_for_spaces(space, Discrete(2))
    ones = np.ones((1, 2), "float32")
    assert agent({"left": 5 * ones, "right": ones}).numpy().tolist() == [[2.0, 2.0]]


# The default policy and the normalizer

NESTED = gym.spaces.Dict(
    where=Discrete(4, start=1),
    eye=gym.spaces.Tuple([IMAGE, gym.spaces.MultiBinary(2)]),
    speed=Box(-9, 9, (2,)),
)


def test_normalizer_changes_only_real_valued_observations():
    agent = tfr.Reinforce.for_env(
        lambda: toys.Observing(NESTED), hidden=(3,), normalize_observations=True
    )
    agent.fit(lambda: toys.Observing(NESTED), **FEW)
    observations = spaces.sample_observations(
        NESTED, "float32", 6, np.random.default_rng(0)
    )
    normalized = agent.normalizer(observations)
    assert np.abs(normalized["speed"] - observations["speed"]).max() > 0.1
    for key in ("where", "eye"):
        for one, other in zip(
            *map(keras.tree.flatten, (normalized[key], observations[key]))
        ):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
    assert [mean.shape for mean in agent.normalizer.means] == [(2,)]


@pytest.mark.parametrize("name", [sweeps.rare("FrozenLake-v1"), "Blackjack-v1"])
def test_agent_for_discrete_observations_is_trained_saved_and_exported(name, tmp_path):
    agent = tfr.Reinforce.for_env(name, hidden=(8,))
    agent.fit(name, epochs=1, episodes_per_epoch=4, verbose=0)
    assert agent.trainer.collector.programs["acting", False].runtime == "litert"
    assert agent.evaluate(name, 2)["episodes"] == 2
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    space = agent.observation_space
    observations = spaces.sample_observations(
        space, "float32", 5, np.random.default_rng(0)
    )
    np.testing.assert_array_equal(loaded(observations), agent(observations))
    agent.export(tmp_path / "policy")
    act = tf.saved_model.load(tmp_path / "policy").signatures["act"]
    np.testing.assert_array_equal(
        act(**by_name(space, observations))["action"],
        agent.act(observations, deterministic=True),
    )


@pytest.mark.slow
def test_default_policy_learns_from_images():
    """The image is white or black, and the reward is one if the action names the
    colour.
    """

    class Picture(gym.Env):
        observation_space, action_space = Box(0, 255, (8, 8), np.uint8), Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.white = int(self.np_random.integers(2))
            return self._observation(), {}

        def step(self, action):
            return self._observation(), float(action == self.white), True, False, {}

        def _observation(self):
            return np.full((8, 8), 255 * self.white, np.uint8)

    agent = tfr.Reinforce.for_env(Picture, hidden=(16,))
    agent.fit(Picture, epochs=20, verbose=0)
    assert agent.evaluate(Picture, 50)["episode_return"] == 1.0
