"""Collecting: whole episodes, in order of starting, from every kind of environment."""

import copy
import warnings

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.collect import batched_envs
from tf_reinforce.collect import host_loop
from tf_reinforce.collect import results
from tf_reinforce.data import seeding
from tf_reinforce.policies import actor as deciding

MODES = list(gym.vector.AutoresetMode)
COUNTS = (1, 3, 16, 64)


def play(
    env, num_envs=1, *, episodes=None, steps=None, head=None, dtype="float32", **options
):
    """Episodes of a policy without a network: its actions are a function of the noise."""
    head = head or heads.Categorical(2)

    def act(inputs):
        noise = inputs[-1]
        raw = noise.argmax(-1).astype("int32") if head.action_dtype else noise
        sent = head.to_environment(tf.constant(raw)).numpy()
        return [raw], [sent], [], np.True_

    with tfr.collect.open_envs(env, num_envs, **options) as envs:
        actor = deciding.ActorPolicy(None, head, envs.configure(dtype), dtype, [])
        return host_loop.collect(envs, actor, act, toys.request(episodes, steps))


def vector(makers, mode, **kwargs):
    return gym.vector.SyncVectorEnv(makers, autoreset_mode=mode, **kwargs)


def assert_clock(episodes):
    """Row t is the observation t, reward t is t + 1, and behind the end is nothing."""
    observations, rewards = episodes.observations[..., 0], episodes.rewards
    for column, length in enumerate(episodes.lengths):
        shown = observations[: length + 1, column].tolist()
        assert shown == list(range(length + 1))
        assert rewards[:length, column].tolist() == list(range(1, length + 1))
        assert not observations[length + 1 :, column].any()
        assert not rewards[length:, column].any()


def same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def lengths_by_definition(count):
    """What `toys.Lengths` draws for episodes 0, 1, … when each is reset by itself."""
    seeds = seeding.EpisodeSeeds(0, "training", 0)
    rngs = [gym.utils.seeding.np_random(seeds.environment(e))[0] for e in range(count)]
    return [int(rng.integers(1, 13)) for rng in rngs]


class Registered(toys.Clock):
    """Remembers who was made, stepped and closed."""

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
    """The clock's number in every array of a nested observation."""

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


# Only true steps


@pytest.mark.parametrize("length", [1, 2, 7, 300])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("mode", [None, *MODES])
def test_every_way_of_resetting_gives_the_same_episodes(mode, size, length):
    """
    t             0      1      2      3
    observation   0      1      2*     0         * final, for `length` 2
    stored        yes    yes    last   next

    NEXT_STEP answers the action taken at 2* with the reset, which is no step.
    """
    log = []
    makers = [lambda: Registered(length, log)] * size
    env = makers[0] if mode is None else vector(makers, mode)
    episodes = play(env, size, episodes=2 * size).episodes
    assert episodes.lengths.tolist() == [length] * (2 * size)
    assert episodes.terminated.all()
    assert_clock(episodes)
    # Exactly the steps that the environments themselves counted.
    assert episodes.lengths.sum() == sum(made.steps for made in log)


@pytest.mark.parametrize("mode", MODES)
def test_a_vector_env_with_reused_buffers_is_copied(mode):
    episodes = play(vector([toys.Clock] * 2, mode, copy=False), episodes=6).episodes
    assert episodes.count == 6
    assert_clock(episodes)


@pytest.mark.parametrize("mode", MODES)
def test_the_last_observation_of_a_cut_vector_episode_is_the_true_one(mode):
    limited = [lambda: gym.wrappers.TimeLimit(toys.Clock(9), 4)] * 2
    episodes = play(vector(limited, mode), episodes=5).episodes
    assert episodes.lengths.tolist() == [4] * 5
    assert not episodes.terminated.any()
    assert_clock(episodes)


@pytest.mark.parametrize("mode", [None, *MODES])
def test_nested_observations_keep_their_structure_types_and_rows(mode):
    env = Nested if mode is None else vector([Nested] * 2, mode)
    episodes = play(env, 2, episodes=4).episodes
    wide, (image, number) = (episodes.observations[key] for key in ("wide", "pair"))
    assert (wide.dtype, image.dtype, number.dtype) == ("float32", "uint8", "float32")
    rows = np.arange(4)[:, None] * np.ones(4)
    np.testing.assert_array_equal(wide, np.stack([rows] * 2, -1))
    np.testing.assert_array_equal(image[..., 1, 0], rows)
    np.testing.assert_array_equal(number, rows)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_real_observations_are_recorded_in_the_type_of_the_policy(dtype):
    class Third(toys.Clock):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)

        def _observation(self):
            return np.array([self.now / 3])

    observations = play(Third, episodes=1, dtype=dtype).episodes.observations
    expected = (np.arange(4) / 3).astype(dtype)[:, None, None]
    assert observations.dtype == dtype
    np.testing.assert_array_equal(observations, expected)


def test_an_observation_buffer_that_the_environment_reuses_is_copied():
    class Reusing(toys.Clock):
        buffer = np.zeros(1, np.float32)

        def _observation(self):
            self.buffer[0] = self.now
            return self.buffer

    episodes = play(lambda: Reusing(5), episodes=3).episodes
    assert_clock(episodes)


def test_episodes_longer_than_every_buffer_are_kept_whole():
    episodes = play(lambda: toys.Clock(1500), 2, episodes=3).episodes
    assert episodes.lengths.tolist() == [1500] * 3
    assert_clock(episodes)


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_a_second_collection_from_one_vector_env_begins_afresh(mode, length):
    """What was about to be reset after the first must not swallow a step of the second.

    Both slots have just ended: with NEXT_STEP the next row would be their reset.
    """
    env = vector([lambda: toys.Clock(length)] * 2, mode)
    with tfr.collect.open_envs(env, 1) as envs:
        for _ in range(2):
            episodes = play(envs, episodes=2).episodes
            assert episodes.lengths.tolist() == [length] * 2
            assert_clock(episodes)


def test_what_is_stored_is_what_was_sampled_before_it_was_clipped():
    """Nine draws of ten lie outside; the score of a clipped action has not mean zero."""

    class Narrow(toys.Clock):
        action_space = gym.spaces.Box(-0.1, 0.1, (2,), np.float32)

        def step(self, action):
            assert self.action_space.contains(action)
            return super().step(action)

    head = heads.Gaussian(2, low=-0.1, high=0.1)
    actions = play(lambda: Narrow(200), 2, episodes=3, head=head).episodes.actions
    seeds = seeding.EpisodeSeeds(0, "training", 0)
    for e in range(3):
        drawn = seeds.action(e).standard_normal((200, 2), "float32")
        np.testing.assert_array_equal(actions[:, e], drawn)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64", "int64"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_choice_of_any_type_is_a_number(dtype, nested):
    """An array without axes is a member of the space too, and no key of a dict."""
    space = gym.spaces.Discrete(2, start=1, dtype=np.dtype(dtype))

    class Table(toys.Clock):
        action_space = gym.spaces.Tuple([space]) if nested else space

        def step(self, action):
            (choice,) = action if nested else (action,)
            assert choice.dtype == dtype and {1: "left", 2: "right"}[choice]
            return super().step(action)

    agent = tfr.Reinforce.for_env(Table, hidden=())
    assert agent.collect(Table, 4).lengths.tolist() == [3] * 4


# Which episodes


@pytest.mark.parametrize("num_envs", COUNTS)
def test_exactly_the_wanted_episodes_in_order_of_starting(num_envs):
    """No survivors: the lengths are those of episodes 0 to 39, played one by one."""
    head = heads.Categorical(3, start=5)
    episodes = play(toys.Lengths, num_envs, episodes=40, head=head).episodes
    assert episodes.lengths.tolist() == lengths_by_definition(40)
    # Each column tells its own length, so that none was mixed with another.
    told = episodes.observations[0, :, 1]
    np.testing.assert_array_equal(told, episodes.lengths)


def test_the_number_of_environments_does_not_change_one_number():
    """Rewards and actions too: 260 steps cross the blocks in which noise is drawn."""
    head = heads.Categorical(3, start=5)
    runs = [play(toys.Lengths, n, episodes=40, head=head).episodes for n in COUNTS]
    assert runs[0].lengths.sum() > 256
    for run in runs[1:]:
        same(runs[0], run)


@pytest.mark.parametrize("num_envs", COUNTS)
@pytest.mark.parametrize("steps", [1, 2, 12, 50, 131])
def test_steps_take_the_fewest_episodes_in_order_of_starting(steps, num_envs):
    lengths = lengths_by_definition(steps)
    fewest = next(k for k in range(1, steps + 1) if sum(lengths[:k]) >= steps)
    head = heads.Categorical(3, start=5)
    episodes = play(toys.Lengths, num_envs, steps=steps, head=head).episodes
    assert episodes.lengths.tolist() == lengths[:fewest]


@pytest.mark.parametrize("num_envs", [1, 3, 16])
def test_no_environment_begins_an_episode_that_is_not_wanted(num_envs):
    log, begun = [], []

    class Counting(Registered):
        def reset(self, **kwargs):
            begun.append(kwargs)
            return super().reset(**kwargs)

    play(lambda: Counting(3, log), num_envs, episodes=5)
    assert len(begun) == 5
    assert sum(made.steps for made in log) == 15


@pytest.mark.parametrize("mode", MODES)
def test_the_first_to_finish_do_not_win_in_a_vector_env(mode):
    """Slot 0 finishes four episodes before slot 1 finishes its first."""
    env = vector([lambda: toys.Clock(1), lambda: toys.Clock(9)], mode)
    episodes = play(env, episodes=4).episodes
    assert episodes.lengths.tolist() == [1, 9, 1, 1]
    assert_clock(episodes)


@pytest.mark.parametrize("mode", MODES)
def test_a_vector_env_may_be_larger_than_what_is_wanted(mode):
    episodes = play(vector([toys.Clock] * 5, mode), episodes=2).episodes
    assert episodes.lengths.tolist() == [3, 3]
    assert_clock(episodes)


@pytest.mark.parametrize("mode", MODES)
def test_steps_from_a_vector_env_are_true_steps(mode):
    episodes = play(vector([toys.Clock] * 2, mode), steps=10).episodes
    assert episodes.lengths.tolist() == [3] * 4
    assert_clock(episodes)


@pytest.mark.parametrize("mode", [None, *MODES])
def test_success_is_read_from_the_last_info(mode):
    class Succeeding(toys.Clock):
        def step(self, action):
            *answer, info = super().step(action)
            return *answer, {"is_success": self.now == 3}

    env = Succeeding if mode is None else vector([Succeeding], mode)
    assert play(env, episodes=2).success.tolist() == [1.0, 1.0]
    silent = toys.Clock if mode is None else vector([toys.Clock], mode)
    assert np.isnan(play(silent, episodes=2).success).all()


@pytest.mark.parametrize("mode", [None, *MODES])
def test_success_is_known_only_of_episodes_that_report_it(mode):
    """Episodes of odd length report success; others may end in the same step."""

    class Reporting(toys.Lengths):
        def step(self, action):
            *answer, info = super().step(action)
            reported = answer[2] and self.length % 2
            return *answer, {"is_success": True} if reported else {}

    head = heads.Categorical(3, start=5)
    env = Reporting if mode is None else vector([Reporting] * 3, mode)
    played = play(env, 3, episodes=30, head=head)
    expected = np.where(played.episodes.lengths % 2, 1.0, np.nan)
    np.testing.assert_array_equal(played.success, expected)
    assert 0 < np.isnan(expected).sum() < 30


@pytest.mark.parametrize("mode", MODES)
def test_an_overwritten_last_observation_is_refused_and_never_recorded(mode):
    """
    SAME_STEP: the environment is reset before its last observation is read. When both
    are one array, `final_obs` shows the reset.
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
            play(env, episodes=4)
    else:
        assert_clock(play(env, episodes=4).episodes)


def test_an_observation_of_which_one_part_is_overwritten_is_refused_too():
    class Half(Nested):
        def __init__(self):
            super().__init__(3)
            self.wide = np.zeros(2)

        def _observation(self):
            self.wide[:] = self.now
            return {**super()._observation(), "wide": self.wide}

    env = vector([Half] * 2, gym.vector.AutoresetMode.SAME_STEP)
    with pytest.raises(results.EnvironmentFault, match="overwrote the last observation"):
        play(env, episodes=4)


def test_the_first_step_that_is_not_finite_is_named():
    """Of two; nothing acts on what is not finite before."""

    class Broken(toys.Clock):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

        def _observation(self):
            return np.array([np.nan if self.now in (3, 4) else 0.0, 1.0], np.float32)

    with pytest.raises(results.EnvironmentFault, match="step 2: the observation is not"):
        play(lambda: Broken(6), episodes=1)


# The clock


def test_seconds_are_those_of_the_environments_and_of_all_the_rest(monkeypatch):
    """On a clock that only resets, steps and actions move: by 64, 1 and 1024."""
    now = [0.0]

    class Slow(toys.Lengths):
        def reset(self, **given):
            now[0] += 64
            return super().reset(**given)

        def step(self, action):
            now[0] += 1
            return super().step(action)

    def slowly(inputs):
        now[0] += 1024
        calls.append(inputs)
        return [np.zeros(1, "int32")], [np.full(1, 5)], [], np.True_

    calls, head = [], heads.Categorical(2)
    monkeypatch.setattr(host_loop.time, "perf_counter", lambda: now[0])
    with tfr.collect.open_envs(Slow, 1) as envs:
        actor = deciding.ActorPolicy(None, head, envs.configure("float32"), "float32", [])
        played = host_loop.collect(envs, actor, slowly, toys.request(episodes=9))
    steps = played.episodes.lengths.sum()
    assert len(calls) == steps
    assert played.seconds == {"stepping": 64 * 9 + steps, "acting": 1024 * steps}


@pytest.mark.parametrize(
    "limit, length, ended", [(3, 3, False), (5, 5, True), (7, 5, True)]
)
def test_a_time_limit_cuts_at_its_step_unless_the_task_ends_there(limit, length, ended):
    made = lambda: toys.Clock(5)  # noqa: E731
    episodes = play(made, 2, episodes=3, max_episode_steps=limit).episodes
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
def test_where_both_flags_are_set_the_task_ended_the_episode(
    terminated, truncated, length, ended, mode
):
    """Step 3 answers with these flags; step 5 is the end of the task anyway."""

    def answer(observation, reward, *_):
        return observation, reward, terminated, truncated, {}

    def make():
        return toys.Misbehaving(3, answer, length=5)

    env = make if mode is None else vector([make] * 2, mode)
    episodes = play(env, 2, episodes=3).episodes
    assert episodes.lengths.tolist() == [length] * 3
    assert episodes.terminated.tolist() == [ended] * 3
    assert_clock(episodes)


def test_episodes_that_are_cut_keep_their_place_among_the_others():
    head, natural = heads.Categorical(3, start=5), lengths_by_definition(20)
    options = dict(episodes=20, head=head, max_episode_steps=6)
    episodes = play(toys.Lengths, 3, **options).episodes
    assert episodes.lengths.tolist() == [min(n, 6) for n in natural]
    assert episodes.terminated.tolist() == [n <= 6 for n in natural]
    assert set(episodes.terminated) == {True, False}


def test_an_environment_without_a_limit_is_cut_with_one_warning(monkeypatch):
    assert batched_envs.DEFAULT_MAX_EPISODE_STEPS == 10_000
    monkeypatch.setattr(batched_envs, "DEFAULT_MAX_EPISODE_STEPS", 20)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        episodes = play(lambda: toys.Clock(1000), 2, episodes=5).episodes
    assert episodes.lengths.tolist() == [20] * 5
    assert not episodes.terminated.any()
    assert ["did not end within 20 steps" in str(w.message) for w in said] == [True]


def test_an_episode_that_ends_at_the_limit_by_itself_is_not_called_cut(monkeypatch):
    """Warnings are errors here: the default limit must not speak of this episode."""
    monkeypatch.setattr(batched_envs, "DEFAULT_MAX_EPISODE_STEPS", 5)
    assert play(lambda: toys.Clock(5), episodes=2).episodes.terminated.all()


@pytest.mark.parametrize("kind", ["object", "callable"])
def test_a_limit_that_nobody_holds_is_held_here(kind):
    """`gym.make(…).unwrapped` still states the limit, but has lost its wrapper."""

    class Endless(toys.Clock):
        spec = gym.envs.registration.EnvSpec("Endless-v0", max_episode_steps=6)

        def step(self, action):
            assert self.now < 50, "nobody cut the episode"
            return super().step(action)

    env = Endless(1000) if kind == "object" else lambda: Endless(1000)
    episodes = play(env, episodes=2).episodes
    assert episodes.lengths.tolist() == [6, 6]
    assert not episodes.terminated.any()


def test_a_vector_env_may_state_a_limit_above_the_default(monkeypatch):
    monkeypatch.setattr(batched_envs, "DEFAULT_MAX_EPISODE_STEPS", 5)
    spec = gym.envs.registration.EnvSpec("Clock-v0", toys.Clock, max_episode_steps=8)
    env = gym.make_vec(spec, 2, vectorization_mode="sync", length=100)
    assert env.spec.max_episode_steps == 8
    assert play(env, episodes=3).episodes.lengths.tolist() == [8] * 3


@pytest.mark.parametrize("limit", [None, 15])
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_what_is_recorded_is_what_gymnasium_itself_would_give(name, limit):
    """The recorded actions, replayed in Gymnasium's own environment and time limit."""
    theirs = gym.make(name, max_episode_steps=limit)
    head = heads.for_space(theirs.action_space)
    played = play(name, 3, episodes=4, head=head, max_episode_steps=limit).episodes
    seeds = seeding.EpisodeSeeds(0, "training", 0)
    for e, length in enumerate(played.lengths):
        observation, _ = theirs.reset(seed=seeds.environment(e))
        np.testing.assert_array_equal(played.observations[0, e], observation)
        sent = head.to_environment(tf.constant(played.actions[:length, e])).numpy()
        for t, action in enumerate(sent):
            observation, reward, terminated, truncated, _ = theirs.step(action)
            np.testing.assert_array_equal(played.observations[t + 1, e], observation)
            assert played.rewards[t, e] == reward
            assert (terminated or truncated) == (t + 1 == length)
        assert played.terminated[e] == terminated


# Who made it


def test_an_environment_passed_as_object_runs_alone_and_stays_open():
    env = Registered()
    assert play(env, 8, episodes=3).episodes.count == 3
    assert (env.closed, len(env.log), env.steps) == (0, 1, 9)


def test_the_first_of_several_environments_says_how_long_an_episode_lasts():
    limits = iter([4, 9])

    def make():
        return gym.wrappers.TimeLimit(gym.make("CartPole-v1").unwrapped, next(limits))

    def spec_of(env):
        spec = copy.deepcopy(gym.spec("CartPole-v1"))
        spec.max_episode_steps = env._max_episode_steps
        env.unwrapped.spec = spec
        return env

    with tfr.collect.open_envs(lambda: spec_of(make()), 2) as envs:
        assert envs.limit == 4


def test_environments_made_here_are_closed_once():
    log = []
    play(lambda: Registered(3, log), 4, episodes=2)
    assert [env.closed for env in log] == [1] * 4


def test_environments_already_made_are_closed_when_a_later_one_fails():
    log = []
    with pytest.raises(OSError, match="no more displays"):
        play(lambda: Registered(3, log, raises_at=2), 4, episodes=2)
    assert [env.closed for env in log] == [1, 1]


def test_environments_made_here_are_closed_when_an_episode_fails():
    log = []

    class Broken(Registered):
        def step(self, action):
            raise RuntimeError("lost")

    with pytest.raises(results.EnvironmentFault, match="lost"):
        play(lambda: Broken(3, log), 3, episodes=2)
    assert [env.closed for env in log] == [1] * 3


def test_a_vector_env_stays_open():
    log = []
    play(vector([lambda: Registered(3, log)] * 2, MODES[0]), episodes=2)
    assert not any(env.closed for env in log)


def test_a_spec_keeps_its_arguments_limit_and_wrappers():
    spec = gym.envs.registration.EnvSpec(
        "Clock-v0", toys.Clock, max_episode_steps=4, kwargs={"length": 9}
    )
    episodes = play(spec, 2, episodes=3).episodes
    assert episodes.lengths.tolist() == [4] * 3
    assert play(spec, episodes=1, env_kwargs={"length": 2}).episodes.terminated.all()
    aware = gym.wrappers.TimeAwareObservation(gym.make(spec)).spec
    episodes = play(aware, 2, episodes=3).episodes
    assert episodes.lengths.tolist() == [4] * 3
    assert episodes.observations.shape == (5, 3, 2)


def test_a_spec_handed_in_is_not_changed():
    spec = gym.spec("CartPole-v1")
    before = spec.to_json()
    play(spec, episodes=1, max_episode_steps=3)
    assert spec.to_json() == before
    assert gym.spec("CartPole-v1").max_episode_steps == 500


def test_an_id_may_name_the_module_that_registers_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "clocks.py").write_text(
        "import gymnasium, toys\n"
        "gymnasium.register('Late-v0', toys.Clock, max_episode_steps=50)\n"
    )
    episodes = play("clocks:Late-v0", 2, episodes=3, env_kwargs={"length": 4}).episodes
    assert episodes.lengths.tolist() == [4] * 3
    del gym.registry["Late-v0"]


def test_a_callable_receives_the_keywords():
    episodes = play(toys.Clock, 2, episodes=2, env_kwargs={"length": 5}).episodes
    assert episodes.lengths.tolist() == [5, 5]
