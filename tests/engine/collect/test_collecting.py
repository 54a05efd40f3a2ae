"""Tests the host loop: complete episodes in start order, from every kind of
environment.
"""

import types

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import environments
from tf_reinforce.policies import actor as deciding
from tf_reinforce.settings import config

MODES = list(gym.vector.AutoresetMode)
COUNTS = (1, 3, 16, 64)
LENGTHS_HEAD = heads.Categorical(3, start=5)


def collect(
    env,
    num_envs=1,
    *,
    episodes=None,
    steps=None,
    head=None,
    dtype="float32",
    info_keys=(),
    **options,
):
    """Collects episodes with a policy without a network.

    Its actions are a function of the noise.
    """
    head = head or heads.Categorical(2)

    def act(inputs):
        noise = inputs[-1]
        raw = noise.argmax(-1).astype("int32") if head.action_dtype else noise
        actions = head.to_environment(tf.constant(raw)).numpy()
        return [raw], [actions], [], np.True_

    with tfr.collect.open_envs(env, num_envs, **options) as envs:
        spec = records.observation_spec(envs.observation_space, dtype)
        actor = deciding.ActorPolicy(None, head, spec, dtype, [])
        weights = environments.read_weights(actor)
        settings = config.EnvSettings(info_keys=info_keys)
        request = toys.request(episodes, steps, weights=weights, settings=settings)
        program = types.SimpleNamespace(for_batch=lambda *_: act)
        return envs._collect_episodes(actor, program, request)


def vector(makers, mode, **kwargs):
    return gym.vector.SyncVectorEnv(makers, autoreset_mode=mode, **kwargs)


def assert_clock(episodes):
    """Asserts that observation t is t, reward t is t + 1, and padding is zero."""
    observations, rewards = episodes.observations[..., 0], episodes.rewards
    for column, length in enumerate(episodes.lengths):
        clock = observations[: length + 1, column].tolist()
        assert clock == list(range(length + 1))
        assert rewards[:length, column].tolist() == list(range(1, length + 1))
        assert not observations[length + 1 :, column].any()
        assert not rewards[length:, column].any()


def lengths_by_definition(count):
    """Returns the lengths that `toys.Lengths` draws for episodes 0, 1, … after their
    own resets.
    """
    seeds = seeding.EpisodeSeeds(0, "training", 0)
    rngs = [gym.utils.seeding.np_random(seeds.reset_seed(e))[0] for e in range(count)]
    return [int(rng.integers(1, 13)) for rng in rngs]


class LoggedClock(toys.Clock):
    """Adds itself to `log`, and counts its steps."""

    def __init__(self, length, log):
        super().__init__(length)
        log.append(self)
        self.steps = 0

    def step(self, action):
        self.steps += 1
        return super().step(action)


PAIR = gym.spaces.Box(0, 255, (2, 2), np.uint8), gym.spaces.Box(-np.inf, np.inf, ())


class Nested(toys.Clock):
    """Returns the time step in every array of a nested observation."""

    observation_space = gym.spaces.Dict(
        wide=gym.spaces.Box(-np.inf, np.inf, (2,), np.float64),
        pair=gym.spaces.Tuple(PAIR),
    )

    def _observation(self):
        space = self.observation_space
        parts = {"wide": space["wide"], "pair": tuple(space["pair"])}
        return keras.tree.map_structure(
            lambda x: np.full(x.shape, self.now, x.dtype), parts
        )


# Only steps with an action are stored


@pytest.mark.parametrize("length", [1, 2, 7, 300])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("mode", [None, *MODES])
def test_every_autoreset_mode_gives_the_same_episodes(mode, size, length):
    """
    t             0      1      2      3
    observation   0      1      2*     0         * final, for `length` 2
    stored        yes    yes    last   next

    With NEXT_STEP, the action after 2* triggers the reset. That action is not a step.
    """
    log = []
    makers = [lambda: LoggedClock(length, log)] * size
    env = makers[0] if mode is None else vector(makers, mode)
    episodes = collect(env, size, episodes=2 * size).episodes
    assert episodes.lengths.tolist() == [length] * (2 * size)
    assert episodes.terminated.all()
    assert_clock(episodes)
    # The environments counted exactly the steps of the episodes.
    assert episodes.lengths.sum() == sum(clock.steps for clock in log)


@pytest.mark.parametrize("mode", [None, *MODES])
def test_nested_observations_keep_structure_dtypes_and_row_order(mode):
    env = Nested if mode is None else vector([Nested] * 2, mode)
    episodes = collect(env, 2, episodes=4).episodes
    wide, (image, number) = (episodes.observations[key] for key in ("wide", "pair"))
    assert (wide.dtype, image.dtype, number.dtype) == ("float32", "uint8", "float32")
    rows = np.arange(4)[:, None] * np.ones(4)
    np.testing.assert_array_equal(wide, np.stack([rows] * 2, -1))
    np.testing.assert_array_equal(image[..., 1, 0], rows)
    np.testing.assert_array_equal(number, rows)


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_second_collection_from_a_vector_env_starts_with_new_episodes(mode, length):
    """An autoreset that is pending after the first collection must not replace a step.

    Both environments have just ended an episode. With NEXT_STEP, the next row would be
    their reset.
    """
    env = vector([lambda: toys.Clock(length)] * 2, mode)
    with tfr.collect.open_envs(env, 1) as envs:
        for _ in range(2):
            episodes = collect(envs, episodes=2).episodes
            assert episodes.lengths.tolist() == [length] * 2
            assert_clock(episodes)


def test_stored_actions_are_raw_actions_before_clipping():
    """Nine of ten samples lie outside the bounds.

    The mean score of clipped actions is not zero.
    """

    class Narrow(toys.Clock):
        action_space = gym.spaces.Box(-0.1, 0.1, (2,), np.float32)

        def step(self, action):
            assert self.action_space.contains(action)
            return super().step(action)

    head = heads.Gaussian(2, low=-0.1, high=0.1)
    actions = collect(lambda: Narrow(200), 2, episodes=3, head=head).episodes.actions
    seeds = seeding.EpisodeSeeds(0, "training", 0)
    for e in range(3):
        noise = seeds.action_generator(e).standard_normal((200, 2), "float32")
        np.testing.assert_array_equal(actions[:, e], noise)


# Which episodes are collected


@pytest.mark.parametrize("num_envs", COUNTS)
def test_collects_the_first_40_episodes_in_start_order(num_envs):
    """The lengths equal those of episodes 0 to 39, played alone.

    Short episodes are not preferred.
    """
    episodes = collect(toys.Lengths, num_envs, episodes=40, head=LENGTHS_HEAD).episodes
    assert episodes.lengths.tolist() == lengths_by_definition(40)
    # Each observation contains the length of its episode, so mixed columns would show.
    observed_lengths = episodes.observations[0, :, 1]
    np.testing.assert_array_equal(observed_lengths, episodes.lengths)


def test_episodes_are_identical_for_any_number_of_environments():
    """260 steps exceed one block of noise, which has 256 rows."""
    options = dict(episodes=40, head=LENGTHS_HEAD)
    runs = [collect(toys.Lengths, n, **options).episodes for n in COUNTS]
    assert runs[0].lengths.sum() > 256
    for run in runs[1:]:
        for a, b in zip(runs[0], run, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("num_envs", COUNTS)
@pytest.mark.parametrize("steps", [1, 2, 12, 50, 131])
def test_steps_collect_the_fewest_episodes_in_start_order(steps, num_envs):
    lengths = lengths_by_definition(steps)
    fewest = next(k for k in range(1, steps + 1) if sum(lengths[:k]) >= steps)
    episodes = collect(toys.Lengths, num_envs, steps=steps, head=LENGTHS_HEAD).episodes
    assert episodes.lengths.tolist() == lengths[:fewest]


@pytest.mark.parametrize("mode", MODES)
def test_vector_env_may_have_more_environments_than_requested_episodes(mode):
    episodes = collect(vector([toys.Clock] * 5, mode), episodes=2).episodes
    assert episodes.lengths.tolist() == [3, 3]
    assert_clock(episodes)


@pytest.mark.parametrize("mode", [None, *MODES])
def test_numbers_of_the_last_info_are_nan_for_episodes_without_them(mode):
    """Only episodes of odd length report success, and all others a second key.

    Several episodes may end in one vector step.
    """

    class Odd(toys.Reporting):
        def step(self, action):
            *answer, info = super().step(action)
            if answer[2]:
                info |= {"is_success": True} if self.length % 2 else {"_even": None}
            return *answer, info

    env = Odd if mode is None else vector([Odd] * 3, mode)
    keys = "cost", "late"
    result = collect(env, 3, episodes=30, head=LENGTHS_HEAD, info_keys=keys)
    lengths = result.episodes.lengths
    expected = np.where(lengths % 2, 1.0, np.nan)
    assert 0 < np.isnan(expected).sum() < 30
    assert list(result.info) == ["success", *keys]
    np.testing.assert_array_equal(result.info["success"], expected)
    np.testing.assert_array_equal(result.info["cost"], lengths / 7)
    late = np.where(lengths % 3, lengths > 6, np.nan)
    np.testing.assert_array_equal(result.info["late"], late)
    assert result.info_names == {"cost", "is_success", "_even"}


@pytest.mark.parametrize("mode", MODES)
def test_overwritten_final_observation_of_vector_env_raises(mode):
    """
    With SAME_STEP, the environment is reset before its final observation is read. If both
    observations are one array, `final_obs` contains the reset observation.
    """

    class Reusing(toys.Clock):
        def __init__(self):
            super().__init__(3)
            self.buffer = np.zeros(1, np.float32)

        def _observation(self):
            self.buffer[0] = self.now
            return self.buffer

    env = vector([Reusing] * 2, mode)
    if mode is gym.vector.AutoresetMode.SAME_STEP:
        with pytest.raises(tfr.collect.EnvironmentFault, match=r"observation\.copy\(\)"):
            collect(env, episodes=4)
    else:
        assert_clock(collect(env, episodes=4).episodes)


# Seconds and time limits


@pytest.mark.parametrize(
    "limit, length, ended", [(3, 3, False), (5, 5, True), (7, 5, True)]
)
def test_time_limit_truncates_unless_the_episode_terminates_at_the_limit(
    limit, length, ended
):
    make_env = lambda: toys.Clock(5)  # noqa: E731
    episodes = collect(make_env, 2, episodes=3, max_episode_steps=limit).episodes
    assert episodes.lengths.tolist() == [length] * 3
    assert episodes.terminated.tolist() == [ended] * 3
    assert_clock(episodes)


@pytest.mark.parametrize("mode", [None, *MODES])
@pytest.mark.parametrize(
    "terminated, truncated, length, ended",
    [
        (False, False, 5, True),
        (False, True, 3, False),
        (True, False, 3, True),
        (True, True, 3, True),
    ],
)
def test_episode_with_terminated_and_truncated_counts_as_terminated(
    terminated, truncated, length, ended, mode
):
    """Step 3 returns these flags. Without a flag, the episode terminates at step 5."""

    def make():
        return toys.Misbehaving(3, lambda *x: (*x[:2], terminated, truncated, {}), 5)

    env = make if mode is None else vector([make] * 2, mode)
    episodes = collect(env, 2, episodes=3).episodes
    assert episodes.lengths.tolist() == [length] * 3
    assert episodes.terminated.tolist() == [ended] * 3
    assert_clock(episodes)


def test_truncated_and_terminated_episodes_stay_in_start_order():
    natural_lengths = lengths_by_definition(20)
    options = dict(episodes=20, head=LENGTHS_HEAD, max_episode_steps=6)
    episodes = collect(toys.Lengths, 3, **options).episodes
    assert episodes.lengths.tolist() == [min(n, 6) for n in natural_lengths]
    assert episodes.terminated.tolist() == [n <= 6 for n in natural_lengths]


@pytest.mark.parametrize("limit", [None, 15])
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_stored_episodes_equal_a_replay_of_their_actions_in_gymnasium(name, limit):
    """The replay resets with the seed of each episode, and uses Gymnasium's time
    limit.
    """
    env = gym.make(name, max_episode_steps=limit)
    head = heads.for_space(env.action_space)
    episodes = collect(name, 3, episodes=4, head=head, max_episode_steps=limit).episodes
    seeds = seeding.EpisodeSeeds(0, "training", 0)
    for e, length in enumerate(episodes.lengths):
        observation, _ = env.reset(seed=seeds.reset_seed(e))
        np.testing.assert_array_equal(episodes.observations[0, e], observation)
        actions = head.to_environment(tf.constant(episodes.actions[:length, e])).numpy()
        for t, action in enumerate(actions):
            observation, reward, terminated, truncated, _ = env.step(action)
            np.testing.assert_array_equal(episodes.observations[t + 1, e], observation)
            assert episodes.rewards[t, e] == reward
            assert (terminated or truncated) == (t + 1 == length)
        assert episodes.terminated[e] == terminated


# Creating and closing environments


def test_env_spec_keeps_its_kwargs_time_limit_and_wrappers():
    options = dict(max_episode_steps=4, kwargs={"length": 9})
    spec = gym.envs.registration.EnvSpec("Clock-v0", toys.Clock, **options)
    aware = gym.wrappers.TimeAwareObservation(gym.make(spec)).spec
    for env, size in ((spec, 1), (aware, 2)):
        episodes = collect(env, 2, episodes=3).episodes
        assert episodes.lengths.tolist() == [4] * 3
        assert episodes.observations.shape == (5, 3, size)
    assert collect(spec, episodes=1, env_kwargs={"length": 2}).episodes.terminated.all()


def test_entry_point_may_apply_wrappers_with_a_new_function_for_each_environment():
    """Gymnasium refuses a spec that lists such a wrapper of the entry point."""

    def make(length=9):
        env = gym.wrappers.TimeLimit(toys.Clock(length), 4)
        env = gym.wrappers.TimeAwareObservation(env)
        return gym.wrappers.TransformReward(env, lambda reward: 10 * reward)

    gym.register("Wrapped-v0", make)
    try:
        for env in "Wrapped-v0", gym.spec("Wrapped-v0"):
            episodes = collect(env, 2, episodes=3).episodes
            assert episodes.lengths.tolist() == [4] * 3
            assert episodes.observations.shape == (5, 3, 2)
            assert episodes.rewards[:, 0].tolist() == [10, 20, 30, 40]
            for options in {"env_kwargs": {"length": 2}}, {"max_episode_steps": 2}:
                short = collect(env, episodes=1, **options).episodes
                assert short.lengths.tolist() == [2]
    finally:
        del gym.registry["Wrapped-v0"]
