"""Observations of every space, from the environment to a policy of one's own."""

import collections

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce.collect import env_outputs
from tf_reinforce.collect import results
from tf_reinforce.data import spaces

Box, Discrete = gym.spaces.Box, gym.spaces.Discrete
FEW = {"epochs": 2, "episodes_per_epoch": 3, "num_envs": 2, "verbose": 0}
PAIR = gym.spaces.Dict(gear=Discrete(5), speed=Box(-1, 1, (2,)))
IMAGE = Box(0, 255, (8, 8, 1), np.uint8)


# Reading them


def read(space, observation):
    """What is recorded of one observation, as a list of arrays."""
    reader = env_outputs.ObservationReader(space, "float32")
    leaves = keras.tree.flatten(reader.observation_spec)
    rows = [np.zeros((1, *x.shape), x.dtype.as_numpy_dtype) for x in leaves]
    reader(0, observation, rows)
    return [row[0] for row in rows]


KINDS = [int, np.int64, np.int32, np.uint8, np.array]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_choice_may_be_any_whole_number(kind):
    (found,) = read(Discrete(4, start=2), kind(5))
    assert found == 5 and found.dtype == "int64"


@pytest.mark.parametrize("kind", [bool, np.bool_])
def test_a_choice_of_two_may_be_a_bool(kind):
    hand = gym.spaces.Tuple([Discrete(32), Discrete(2)])
    assert read(hand, (21, kind(True))) == [21, 1]


@pytest.mark.parametrize("wrong", [1, 6, -1, np.int64(6), np.array(1), True, 2**70])
def test_a_choice_outside_its_space_is_refused(wrong):
    with pytest.raises(
        env_outputs.IndexedFault, match=r"is not in Discrete\(4, start=2\)"
    ):
        read(Discrete(4, start=2), wrong)


@pytest.mark.parametrize("wrong", [2.0, "2", None, np.float32(2), np.array([2]), [2]])
def test_a_choice_that_is_no_whole_number_is_refused(wrong):
    with pytest.raises(env_outputs.IndexedFault, match="an integer in Discrete"):
        read(Discrete(4), wrong)


@pytest.mark.parametrize(
    "space, right, wrong",
    [
        (gym.spaces.MultiDiscrete([3, 2], start=[1, 0]), [3, 1], [4, 1]),
        (gym.spaces.MultiDiscrete([3, 2], start=[1, 0]), [1, 0], [0, 0]),
        (gym.spaces.MultiDiscrete([3, 2], np.int8), [2, 1], [256, 0]),
        (gym.spaces.MultiBinary(2), [0, 1], [0, 2]),
    ],
)
def test_choices_and_flags_outside_their_space_are_refused(space, right, wrong):
    """256 would be a fine 0 once it is recorded in eight bits."""
    (found,) = read(space, np.array(right))
    assert found.tolist() == right and found.dtype == space.dtype
    with pytest.raises(env_outputs.IndexedFault, match="is not in Multi"):
        read(space, np.array(wrong))


def test_nested_arrays_are_recorded_by_their_keys():
    """Some environments return an OrderedDict, or a list for a tuple."""
    space = gym.spaces.Dict(b=Discrete(9), a=gym.spaces.Tuple([Discrete(9)] * 2))
    for observation in (
        {"b": 3, "a": (1, 2)},
        {"a": [1, 2], "b": 3},
        collections.OrderedDict(b=3, a=(1, 2)),
    ):
        assert read(space, observation) == [1, 2, 3]


def test_what_differs_from_the_space_is_said():
    with pytest.raises(
        env_outputs.IndexedFault, match=r"keys \['gear', 'speed'\].*dict .*'gear'\]"
    ):
        read(PAIR, {"gear": 1})
    pair = gym.spaces.Tuple([Discrete(2)] * 2)
    with pytest.raises(
        env_outputs.IndexedFault, match="tuple of 2 parts.*a tuple of 3 parts"
    ):
        read(pair, (0, 0, 0))
    with pytest.raises(env_outputs.IndexedFault, match="tuple of 2 parts.*a int"):
        read(pair, 3)


@pytest.mark.parametrize("mode", gym.vector.AutoresetMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", ["FrozenLake-v1", "Blackjack-v1"])
def test_vector_environments_give_whole_numbers_too(name, mode):
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


class Changed(gym.vector.SyncVectorEnv):
    """Three environments whose observations are changed on their way out of a step."""

    def __init__(self, space, change):
        super().__init__([lambda: toys.Observing(space)] * 3)
        self.change = change

    def step(self, actions):
        observations, *rest = super().step(actions)
        return self.change(observations), *rest


def put(array, value):
    array[1] = value
    return array


@pytest.mark.parametrize(
    "space, change, said",
    [
        (Discrete(5), lambda x: put(x, 5), "Environment 1, .*observation 5 is not in"),
        (Discrete(5, start=2), lambda x: x - 5, "is not in Discrete.5, start=2"),
        (
            gym.spaces.MultiDiscrete([3, 2]),
            lambda x: put(x, 2),
            r"1, .*\[2, 2\] is not in",
        ),
        (gym.spaces.MultiBinary(2), lambda x: put(x, -1), r"1, .*\[-1, -1\] is not in"),
        (Discrete(5), lambda x: x / 2, "of type float64. Expected: int64"),
        (PAIR, lambda x: {"gear": x["gear"]}, "a dict with the keys .*'gear', 'speed'"),
        (PAIR, lambda x: tuple(x.values()), "Received: a tuple of 2 parts"),
    ],
    ids=["outside", "below", "multi", "flag", "fraction", "key", "kind"],
)
def test_a_vector_environment_outside_its_space_is_refused(space, change, said):
    agent = tfr.Reinforce.for_env(lambda: toys.Observing(space), hidden=())
    with pytest.raises(results.EnvironmentFault, match=said):
        agent.collect(Changed(space, change), 6)


def test_a_vector_environment_is_read_by_name():
    """Keras keeps the order of an OrderedDict; rows go by sorted keys."""
    space = gym.spaces.Dict(a=Discrete(9), b=Discrete(9, start=9))

    def turned(observations):
        return collections.OrderedDict(sorted(observations.items(), reverse=True))

    agent = tfr.Reinforce.for_env(lambda: toys.Observing(space), hidden=())
    episodes = agent.collect(Changed(space, turned), 6)
    assert episodes.observations["a"].max() < 9 <= episodes.observations["b"].min()


def test_keys_may_be_any_words(tmp_path):
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
    theirs = exported.act(keras.tree.map_structure(tf.constant, batch))["action"]
    loaded = tfr.load(tmp_path / "agent.keras")
    np.testing.assert_array_equal(loaded.act(batch, deterministic=True), theirs)


# Policies of one's own


@keras.saving.register_keras_serializable("test_observations")
class Typed(keras.layers.Layer):
    """Takes arrays of one type, and no other."""

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.kind = kind

    def call(self, inputs):
        if keras.backend.standardize_dtype(inputs.dtype) != self.kind:
            raise TypeError(f"{inputs.dtype} came, not {self.kind}")
        return inputs

    def get_config(self):
        return {**super().get_config(), "kind": self.kind}


def embedding():
    """Cells of a lake, embedded: no batch of one-hot vectors is ever made."""
    layers = Typed("int64"), keras.layers.Embedding(16, 4), keras.layers.Dense(2)
    return keras.Sequential([keras.Input((), dtype="int64"), *layers])


def eye():
    layers = (
        Typed("uint8"),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(3, 3, 2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(2),
    )
    return keras.Sequential([keras.Input(IMAGE.shape, dtype="uint8"), *layers])


def two(arrange):
    """A policy of gear and speed, with its inputs as `arrange(gear, speed)` has them."""

    def make():
        gear = keras.Input((), dtype="int64", name="gear")
        speed = keras.Input((2,), name="speed")
        whole = keras.layers.Embedding(5, 3)(Typed("int64")(gear))
        both = keras.layers.Concatenate()([whole, speed])
        return keras.Model(arrange(gear, speed), keras.layers.Dense(2)(both))

    return make


POLICIES = {
    "choice": (Discrete(16), embedding),
    "image": (IMAGE, eye),
    "dict": (PAIR, two(lambda gear, speed: {"gear": gear, "speed": speed})),
    "dict, turned": (PAIR, two(lambda gear, speed: {"speed": speed, "gear": gear})),
    "list": (PAIR, two(lambda gear, speed: [gear, speed])),
    "list, turned": (PAIR, two(lambda gear, speed: [speed, gear])),
    "tuple": (
        gym.spaces.Tuple([Discrete(5), Box(-1, 1, (2,))]),
        two(lambda gear, speed: [gear, speed]),
    ),
    "tuple, turned": (
        gym.spaces.Tuple([Box(-1, 1, (2,)), Discrete(5)]),
        two(lambda gear, speed: (speed, gear)),
    ),
}


def by_name(space, observations):
    """As keywords of an exported signature."""
    names = keras.tree.flatten(spaces.names(spaces.to_nest(space)))
    arrays = keras.tree.flatten(observations)
    return {name: tf.constant(x) for name, x in zip(names, arrays, strict=True)}


OFTEN = ["image", "dict, turned"]


@pytest.mark.parametrize("case", sweeps.some(POLICIES, always=OFTEN))
def test_a_policy_of_ones_own_lives_a_whole_life(case, tmp_path):
    """Fit, evaluate, act, save, load and export give one policy, to the bit."""
    space, make = POLICIES[case]
    agent = tfr.Reinforce(make(), normalize_observations=case.endswith("turned"))
    agent.compile(keras.optimizers.Adam(0.1))
    agent.fit(lambda: toys.Observing(space), **FEW)
    assert agent.evaluate(lambda: toys.Observing(space), 3)["episode_return"] == 5.0
    assert {made.engine for made in agent.trainer.collector.programs.values()} == {
        "litert"
    }
    observations = spaces.sample_observations(
        space, "float32", 6, np.random.default_rng(0)
    )
    actions = agent.act(observations, seed=3)
    agent.save(tmp_path / "agent.keras")
    agent.export(tmp_path / "policy")
    again = tfr.load(tmp_path / "agent.keras")
    np.testing.assert_array_equal(again.act(observations, seed=3), actions)
    np.testing.assert_array_equal(again(observations), agent(observations))
    exported = tf.saved_model.load(tmp_path / "policy").signatures["sample"]
    given = by_name(space, observations)
    drawn = exported(**given, seed=tf.constant(3, tf.int64))
    np.testing.assert_array_equal(drawn["action"], actions)
    again.fit(lambda: toys.Observing(space), **FEW)
    assert again.updates == 4


@pytest.mark.parametrize("case", [case for case in POLICIES if case.startswith("dict")])
def test_a_dict_is_read_by_name_whatever_the_order_of_inputs(case):
    """The arrays differ in kind, so that a swap would show."""
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


def test_two_arrays_of_one_shape_are_read_by_name_too():
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


def test_the_normalizer_touches_reals_alone():
    agent = tfr.Reinforce.for_env(
        lambda: toys.Observing(NESTED), hidden=(3,), normalize_observations=True
    )
    agent.fit(lambda: toys.Observing(NESTED), **FEW)
    given = spaces.sample_observations(NESTED, "float32", 6, np.random.default_rng(0))
    found = agent.normalizer(given)
    assert np.abs(found["speed"] - given["speed"]).max() > 0.1
    for key in ("where", "eye"):
        for one, other in zip(*map(keras.tree.flatten, (found[key], given[key]))):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
    assert [mean.shape for mean in agent.normalizer.means] == [(2,)]


@pytest.mark.parametrize("name", [sweeps.rare("FrozenLake-v1"), "Blackjack-v1"])
def test_environments_of_whole_numbers_train(name, tmp_path):
    agent = tfr.Reinforce.for_env(name, hidden=(8,))
    agent.fit(name, epochs=1, episodes_per_epoch=4, verbose=0)
    assert agent.trainer.collector.programs["acting", False].engine == "litert"
    assert agent.evaluate(name, 2)["episodes"] == 2
    agent.save(tmp_path / "agent.keras")
    again = tfr.load(tmp_path / "agent.keras")
    space = agent.observation_space
    observations = spaces.sample_observations(
        space, "float32", 5, np.random.default_rng(0)
    )
    np.testing.assert_array_equal(again(observations), agent(observations))
    agent.export(tmp_path / "policy")
    act = tf.saved_model.load(tmp_path / "policy").signatures["act"]
    np.testing.assert_array_equal(
        act(**by_name(space, observations))["action"],
        agent.act(observations, deterministic=True),
    )


def test_an_image_learns_what_it_shows():
    """The picture is white or black; the right arm is the one of its colour."""

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
