"""Tests the host loop: complete episodes in start order, from every kind of
environment.
"""

import copy
import warnings

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.data import seeding
from tf_reinforce.data import tensor_specs
from tf_reinforce.engine.collect import acting_program
from tf_reinforce.engine.collect import host_loop
from tf_reinforce.engine.collect import in_process
from tf_reinforce.engine.collect import results
from tf_reinforce.policies import actor as deciding
from tf_reinforce.settings import config

MODES = list(gym.vector.AutoresetMode)
COUNTS = (1, 3, 16, 64)


def collect(
    env, num_envs=1, *, episodes=None, steps=None, head=None, dtype="float32", **options
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
        spec = tensor_specs.observation_spec(envs.observation_space, dtype)
        actor = deciding.ActorPolicy(None, head, spec, dtype, [])
        weights = acting_program.read_weights(actor)
        request = toys.request(episodes, steps, weights=weights)
        return in_process.collect(envs.batch, actor, act, request)


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


def assert_equal(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def lengths_by_definition(count):
    """Returns the lengths that `toys.Lengths` draws for episodes 0, 1, … after their
    own resets.
    """
    seeds = seeding.EpisodeSeeds(0, "training", 0)
    rngs = [gym.utils.seeding.np_random(seeds.reset_seed(e))[0] for e in range(count)]
    return [int(rng.integers(1, 13)) for rng in rngs]


class LoggedClock(toys.Clock):
    """Adds itself to `log`, and counts its steps and calls of `close`."""

    def __init__(self, length=3, log=None, raises_at=None):
        super().__init__(length)
        self.log = [] if log is None else log
        if len(self.log) == raises_at:
            raise OSError("no more displays")
        self.log.append(self)
        self.steps, self.closed = 0, 0

    def step(self, action):
        self.steps += 1
        return super().step(action)

    def close(self):
        self.closed += 1


class Nested(toys.Clock):
    """Returns the time step in every array of a nested observation."""

    observation_space = gym.spaces.Dict(
        wide=gym.spaces.Box(-np.inf, np.inf, (2,), np.float64),
        pair=gym.spaces.Tuple(
            [
                gym.spaces.Box(0, 255, (2, 2), np.uint8),
                gym.spaces.Box(-np.inf, np.inf, (), np.float32),
            ]
        ),
    )

    def _observation(self):
        now = self.now
        pair = np.full((2, 2), now, np.uint8), np.asarray(now, np.float32)
        return {"wide": np.full(2, now, np.float64), "pair": pair}


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


@pytest.mark.parametrize("mode", MODES)
def test_observations_of_vector_env_with_reused_buffers_are_copied(mode):
    episodes = collect(vector([toys.Clock] * 2, mode, copy=False), episodes=6).episodes
    assert episodes.count == 6
    assert_clock(episodes)


@pytest.mark.parametrize("mode", MODES)
def test_truncated_vector_episode_keeps_its_final_observation(mode):
    limited = [lambda: gym.wrappers.TimeLimit(toys.Clock(9), 4)] * 2
    episodes = collect(vector(limited, mode), episodes=5).episodes
    assert episodes.lengths.tolist() == [4] * 5
    assert not episodes.terminated.any()
    assert_clock(episodes)


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_real_observations_are_stored_in_the_dtype_of_the_policy(dtype):
    class Third(toys.Clock):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)

        def _observation(self):
            return np.array([self.now / 3])

    observations = collect(Third, episodes=1, dtype=dtype).episodes.observations
    expected = (np.arange(4) / 3).astype(dtype)[:, None, None]
    assert observations.dtype == dtype
    np.testing.assert_array_equal(observations, expected)


def test_observation_in_a_reused_buffer_is_copied():
    class Reusing(toys.Clock):
        buffer = np.zeros(1, np.float32)

        def _observation(self):
            self.buffer[0] = self.now
            return self.buffer

    episodes = collect(lambda: Reusing(5), episodes=3).episodes
    assert_clock(episodes)


def test_episodes_of_1500_steps_are_complete():
    episodes = collect(lambda: toys.Clock(1500), 2, episodes=3).episodes
    assert episodes.lengths.tolist() == [1500] * 3
    assert_clock(episodes)


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


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64", "int64"])
@pytest.mark.parametrize("nested", [False, True])
def test_discrete_actions_have_the_dtype_of_the_space_and_are_hashable(dtype, nested):
    """A zero-dimensional array is also a member of the space, but cannot be the key of
    a dict.
    """
    space = gym.spaces.Discrete(2, start=1, dtype=np.dtype(dtype))

    class Table(toys.Clock):
        action_space = gym.spaces.Tuple([space]) if nested else space

        def step(self, action):
            (choice_value,) = action if nested else (action,)
            assert choice_value.dtype == dtype and {1: "left", 2: "right"}[choice_value]
            return super().step(action)

    agent = tfr.Reinforce.for_env(Table, hidden=())
    assert agent.collect(Table, 4).lengths.tolist() == [3] * 4


# Which episodes are collected


@pytest.mark.parametrize("num_envs", COUNTS)
def test_collects_the_first_40_episodes_in_start_order(num_envs):
    """The lengths equal those of episodes 0 to 39, played alone.

    Short episodes are not preferred.
    """
    head = heads.Categorical(3, start=5)
    episodes = collect(toys.Lengths, num_envs, episodes=40, head=head).episodes
    assert episodes.lengths.tolist() == lengths_by_definition(40)
    # Each observation contains the length of its episode, so mixed columns would show.
    observed_lengths = episodes.observations[0, :, 1]
    np.testing.assert_array_equal(observed_lengths, episodes.lengths)


def test_episodes_are_identical_for_any_number_of_environments():
    """260 steps exceed one block of noise, which has 256 rows."""
    head = heads.Categorical(3, start=5)
    runs = [collect(toys.Lengths, n, episodes=40, head=head).episodes for n in COUNTS]
    assert runs[0].lengths.sum() > 256
    for run in runs[1:]:
        assert_equal(runs[0], run)


@pytest.mark.parametrize("num_envs", COUNTS)
@pytest.mark.parametrize("steps", [1, 2, 12, 50, 131])
def test_steps_collect_the_fewest_episodes_in_start_order(steps, num_envs):
    lengths = lengths_by_definition(steps)
    fewest = next(k for k in range(1, steps + 1) if sum(lengths[:k]) >= steps)
    head = heads.Categorical(3, start=5)
    episodes = collect(toys.Lengths, num_envs, steps=steps, head=head).episodes
    assert episodes.lengths.tolist() == lengths[:fewest]


@pytest.mark.parametrize("num_envs", [1, 3, 16])
def test_environments_reset_only_for_requested_episodes(num_envs):
    log, resets = [], []

    class Counting(LoggedClock):
        def reset(self, **kwargs):
            resets.append(kwargs)
            return super().reset(**kwargs)

    collect(lambda: Counting(3, log), num_envs, episodes=5)
    assert len(resets) == 5
    assert sum(clock.steps for clock in log) == 15


@pytest.mark.parametrize("mode", MODES)
def test_vector_env_episodes_are_in_start_order_not_in_end_order(mode):
    """Environment 0 ends four episodes before environment 1 ends its first episode."""
    env = vector([lambda: toys.Clock(1), lambda: toys.Clock(9)], mode)
    episodes = collect(env, episodes=4).episodes
    assert episodes.lengths.tolist() == [1, 9, 1, 1]
    assert_clock(episodes)


@pytest.mark.parametrize("mode", MODES)
def test_vector_env_may_have_more_environments_than_requested_episodes(mode):
    episodes = collect(vector([toys.Clock] * 5, mode), episodes=2).episodes
    assert episodes.lengths.tolist() == [3, 3]
    assert_clock(episodes)


@pytest.mark.parametrize("mode", MODES)
def test_steps_of_a_vector_env_do_not_count_resets(mode):
    episodes = collect(vector([toys.Clock] * 2, mode), steps=10).episodes
    assert episodes.lengths.tolist() == [3] * 4
    assert_clock(episodes)


@pytest.mark.parametrize("mode", [None, *MODES])
def test_success_is_is_success_of_the_last_info_or_nan(mode):
    class Succeeding(toys.Clock):
        def step(self, action):
            *answer, info = super().step(action)
            return *answer, {"is_success": self.now == 3}

    env = Succeeding if mode is None else vector([Succeeding], mode)
    assert collect(env, episodes=2).success.tolist() == [1.0, 1.0]
    silent = toys.Clock if mode is None else vector([toys.Clock], mode)
    assert np.isnan(collect(silent, episodes=2).success).all()


@pytest.mark.parametrize("mode", [None, *MODES])
def test_success_is_nan_for_episodes_that_do_not_report_it(mode):
    """Episodes of odd length report success.

    Several episodes may end in one vector step.
    """

    class Reporting(toys.Lengths):
        def step(self, action):
            *answer, info = super().step(action)
            reported = answer[2] and self.length % 2
            return *answer, {"is_success": True} if reported else {}

    head = heads.Categorical(3, start=5)
    env = Reporting if mode is None else vector([Reporting] * 3, mode)
    result = collect(env, 3, episodes=30, head=head)
    expected = np.where(result.episodes.lengths % 2, 1.0, np.nan)
    np.testing.assert_array_equal(result.success, expected)
    assert 0 < np.isnan(expected).sum() < 30


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
        with pytest.raises(results.EnvironmentFault, match=r"observation\.copy\(\)"):
            collect(env, episodes=4)
    else:
        assert_clock(collect(env, episodes=4).episodes)


def test_overwritten_part_of_final_observation_raises():
    class Half(Nested):
        def __init__(self):
            super().__init__(3)
            self.wide = np.zeros(2)

        def _observation(self):
            self.wide[:] = self.now
            return {**super()._observation(), "wide": self.wide}

    env = vector([Half] * 2, gym.vector.AutoresetMode.SAME_STEP)
    with pytest.raises(results.EnvironmentFault, match="overwrote the last observation"):
        collect(env, episodes=4)


def test_nonfinite_observation_error_names_the_first_nonfinite_step():
    """Observations 3 and 4 are NaN.

    The error is raised before the policy receives them.
    """

    class Broken(toys.Clock):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

        def _observation(self):
            return np.array([np.nan if self.now in (3, 4) else 0.0, 1.0], np.float32)

    with pytest.raises(results.EnvironmentFault, match="step 2: the observation is not"):
        collect(lambda: Broken(6), episodes=1)


# Seconds and time limits


def test_seconds_are_split_into_stepping_and_acting(monkeypatch):
    """The fake clock advances by 64 per reset, by 1 per step and by 1024 per action."""
    now = [0.0]

    class Slow(toys.Lengths):
        def reset(self, **given):
            now[0] += 64
            return super().reset(**given)

        def step(self, action):
            now[0] += 1
            return super().step(action)

    def act_slowly(inputs):
        now[0] += 1024
        calls.append(inputs)
        return [np.zeros(1, "int32")], [np.full(1, 5)], [], np.True_

    calls, head = [], heads.Categorical(2)
    monkeypatch.setattr(host_loop.time, "perf_counter", lambda: now[0])
    with tfr.collect.open_envs(Slow, 1) as envs:
        spec = tensor_specs.observation_spec(envs.observation_space, "float32")
        actor = deciding.ActorPolicy(None, head, spec, "float32", [])
        weights = acting_program.read_weights(actor)
        request = toys.request(episodes=9, weights=weights)
        result = in_process.collect(envs.batch, actor, act_slowly, request)
    steps = result.episodes.lengths.sum()
    assert len(calls) == steps
    assert result.seconds == {"stepping": 64 * 9 + steps, "acting": 1024 * steps}


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

    def answer(observation, reward, *_):
        return observation, reward, terminated, truncated, {}

    def make():
        return toys.Misbehaving(3, answer, length=5)

    env = make if mode is None else vector([make] * 2, mode)
    episodes = collect(env, 2, episodes=3).episodes
    assert episodes.lengths.tolist() == [length] * 3
    assert episodes.terminated.tolist() == [ended] * 3
    assert_clock(episodes)


def test_truncated_and_terminated_episodes_stay_in_start_order():
    head, natural_lengths = heads.Categorical(3, start=5), lengths_by_definition(20)
    options = dict(episodes=20, head=head, max_episode_steps=6)
    episodes = collect(toys.Lengths, 3, **options).episodes
    assert episodes.lengths.tolist() == [min(n, 6) for n in natural_lengths]
    assert episodes.terminated.tolist() == [n <= 6 for n in natural_lengths]
    assert set(episodes.terminated) == {True, False}


def test_default_time_limit_truncates_with_one_warning(monkeypatch):
    assert config.DEFAULT_MAX_EPISODE_STEPS == 10_000
    monkeypatch.setattr(config, "DEFAULT_MAX_EPISODE_STEPS", 20)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        episodes = collect(lambda: toys.Clock(1000), 2, episodes=5).episodes
    assert episodes.lengths.tolist() == [20] * 5
    assert not episodes.terminated.any()
    assert ["did not end within 20 steps" in str(w.message) for w in caught] == [True]


def test_no_warning_if_episodes_terminate_at_the_default_time_limit(monkeypatch):
    """Warnings are errors in this test suite, so a warning would fail this test."""
    monkeypatch.setattr(config, "DEFAULT_MAX_EPISODE_STEPS", 5)
    assert collect(lambda: toys.Clock(5), episodes=2).episodes.terminated.all()


@pytest.mark.parametrize("kind", ["object", "callable"])
def test_time_limit_of_the_spec_is_applied_without_time_limit_wrapper(kind):
    """`gym.make(…).unwrapped` still states the limit in its spec, but has no TimeLimit
    wrapper.
    """

    class Endless(toys.Clock):
        spec = gym.envs.registration.EnvSpec("Endless-v0", max_episode_steps=6)

        def step(self, action):
            assert self.now < 50, "the episode was not truncated"
            return super().step(action)

    env = Endless(1000) if kind == "object" else lambda: Endless(1000)
    episodes = collect(env, episodes=2).episodes
    assert episodes.lengths.tolist() == [6, 6]
    assert not episodes.terminated.any()


def test_time_limit_of_vector_env_spec_may_exceed_the_default(monkeypatch):
    monkeypatch.setattr(config, "DEFAULT_MAX_EPISODE_STEPS", 5)
    spec = gym.envs.registration.EnvSpec("Clock-v0", toys.Clock, max_episode_steps=8)
    env = gym.make_vec(spec, 2, vectorization_mode="sync", length=100)
    assert env.spec.max_episode_steps == 8
    assert collect(env, episodes=3).episodes.lengths.tolist() == [8] * 3


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


def test_environment_object_is_used_alone_and_stays_open():
    env = LoggedClock()
    assert collect(env, 8, episodes=3).episodes.count == 3
    assert (env.closed, len(env.log), env.steps) == (0, 1, 9)


def test_time_limit_is_that_of_the_first_environment():
    limits = iter([4, 9])

    def make_env():
        return gym.wrappers.TimeLimit(gym.make("CartPole-v1").unwrapped, next(limits))

    def spec_of(env):
        spec = copy.deepcopy(gym.spec("CartPole-v1"))
        spec.max_episode_steps = env._max_episode_steps
        env.unwrapped.spec = spec
        return env

    with tfr.collect.open_envs(lambda: spec_of(make_env()), 2) as envs:
        assert envs.batch.max_episode_steps == 4


def test_environments_created_by_collect_are_closed_once():
    log = []
    collect(lambda: LoggedClock(3, log), 4, episodes=2)
    assert [env.closed for env in log] == [1] * 4


def test_created_environments_are_closed_if_a_later_constructor_raises():
    log = []
    with pytest.raises(OSError, match="no more displays"):
        collect(lambda: LoggedClock(3, log, raises_at=2), 4, episodes=2)
    assert [env.closed for env in log] == [1, 1]


def test_created_environments_are_closed_if_a_step_raises():
    log = []

    class Broken(LoggedClock):
        def step(self, action):
            raise RuntimeError("lost")

    with pytest.raises(results.EnvironmentFault, match="lost"):
        collect(lambda: Broken(3, log), 3, episodes=2)
    assert [env.closed for env in log] == [1] * 3


def test_vector_env_stays_open_after_collect():
    log = []
    collect(vector([lambda: LoggedClock(3, log)] * 2, MODES[0]), episodes=2)
    assert not any(env.closed for env in log)


def test_env_spec_keeps_its_kwargs_time_limit_and_wrappers():
    spec = gym.envs.registration.EnvSpec(
        "Clock-v0", toys.Clock, max_episode_steps=4, kwargs={"length": 9}
    )
    episodes = collect(spec, 2, episodes=3).episodes
    assert episodes.lengths.tolist() == [4] * 3
    assert collect(spec, episodes=1, env_kwargs={"length": 2}).episodes.terminated.all()
    time_aware_spec = gym.wrappers.TimeAwareObservation(gym.make(spec)).spec
    episodes = collect(time_aware_spec, 2, episodes=3).episodes
    assert episodes.lengths.tolist() == [4] * 3
    assert episodes.observations.shape == (5, 3, 2)


def test_entry_point_may_apply_wrappers_with_a_new_function_for_each_environment():
    """Gymnasium refuses a spec that lists such a wrapper of the entry point."""

    def make(length=9):
        env = gym.wrappers.TimeLimit(toys.Clock(length), 4)
        env = gym.wrappers.TimeAwareObservation(env)
        return gym.wrappers.TransformReward(env, lambda reward: 10 * reward)

    gym.register("Wrapped-v0", make)
    plain = collect(toys.Clock, episodes=1, env_kwargs={"length": 4}).episodes
    try:
        for env in "Wrapped-v0", gym.spec("Wrapped-v0"):
            episodes = collect(env, 2, episodes=3).episodes
            assert episodes.lengths.tolist() == [4] * 3
            assert episodes.observations.shape == (5, 3, 2)
            np.testing.assert_array_equal(
                episodes.rewards[:, 0], 10 * plain.rewards[:, 0]
            )
            short = collect(env, episodes=1, env_kwargs={"length": 2}).episodes
            assert short.lengths.tolist() == [2] and short.terminated.all()
            short = collect(env, episodes=1, max_episode_steps=3).episodes
            assert short.lengths.tolist() == [3]
    finally:
        del gym.registry["Wrapped-v0"]


def test_collect_does_not_change_the_env_spec():
    spec = gym.spec("CartPole-v1")
    before = spec.to_json()
    collect(spec, episodes=1, max_episode_steps=3)
    assert spec.to_json() == before
    assert gym.spec("CartPole-v1").max_episode_steps == 500


def test_environment_id_may_contain_the_module_that_registers_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "clocks.py").write_text(
        "import gymnasium, toys\n"
        "gymnasium.register('Late-v0', toys.Clock, max_episode_steps=50)\n"
    )
    episodes = collect("clocks:Late-v0", 2, episodes=3, env_kwargs={"length": 4}).episodes
    assert episodes.lengths.tolist() == [4] * 3
    del gym.registry["Late-v0"]


def test_env_kwargs_are_passed_to_a_callable():
    episodes = collect(toys.Clock, 2, episodes=2, env_kwargs={"length": 5}).episodes
    assert episodes.lengths.tolist() == [5, 5]
