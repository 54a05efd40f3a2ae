"""Tests that environments can change in training, in any number of processes."""

import contextlib
import functools
import hashlib
import os
import signal
import sys

import cloudpickle
import gymnasium as gym
import keras
import numpy as np
import pytest
import toys

import tf_reinforce as tfr

# Workers receive the environments of this file, which imports TensorFlow, without it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

EPOCHS, EPISODES = 6, 6


class Hands(gym.Env):
    """Rounds of rock, paper, scissors against an opponent with a linear policy.

    A round won is worth `level`, and as much more as the number in the list `bonus`, an
    option. The reset takes the option out of its dict, as the resets of Gymnasium's
    vector environments do, and the number out of its list.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, failure=None):
        self.level, self.opponent = 1.0, None
        self.failure = failure

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options = {} if options is None else options
        self.bonus = self.options.pop("bonus", [0.0]).pop()
        self.rounds = int(self.np_random.integers(2, 6))
        self.observation = np.full(3, 1 / 3, np.float32)
        return self.observation, {}

    def step(self, action):
        scores = np.zeros(3)
        if self.opponent is not None:
            scores = self.observation @ self.opponent[0] + self.opponent[1]
        hand = int(np.argmax(scores + self.np_random.gumbel(size=3)))
        if self.failure is not None:
            self.failure(self.level)
        reward = ((action - hand + 1) % 3 - 1) * (self.level + self.bonus)
        self.rounds -= 1
        self.observation = np.eye(3, dtype=np.float32)[hand]
        return self.observation, float(reward), self.rounds == 0, False, {}


class SelfPlay(keras.callbacks.Callback):
    """Copies the weights of the agent to its opponent after every second update."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch % 2 == 0:
            self.weights = self.model.policy.get_weights()

    def env_attrs(self, update):
        return {"opponent": self.weights}

    def get_state(self):
        return self.weights

    def set_state(self, state):
        self.weights = state


KINDS = {
    "options": {"reset_options": {"bonus": [2.0]}},
    "function of options": {"reset_options": lambda update: {"bonus": [update]}},
    "attribute": {"env_attrs": {"level": 3.0}},
    "function of attributes": {"env_attrs": lambda update: {"level": update}},
    "self-play": {},
}


def settings(kind):
    """Returns the arguments of `fit` for one way to change the environments."""
    if kind == "self-play":
        opponent = SelfPlay()
        return {"env_attrs": opponent.env_attrs, "callbacks": [opponent]}
    return KINDS[kind]


@functools.cache
def rewindable():
    agent = tfr.Reinforce.for_env(Hands, hidden=(), learning_rate=0.3)
    return agent, toys.rewinding(agent, Hands())


def renewed():
    """Returns one cached agent with its initial variables; its programs stay traced."""
    agent, rewind = rewindable()
    rewind()
    return agent


def train(kind, env=Hands, epochs=EPOCHS, **options):
    """Returns a digest of the weights and of the returns of all updates."""
    agent = renewed()
    options = {**settings(kind), "num_envs": 1, "seed": 2, "verbose": 0, **options}
    history = agent.fit(env, epochs=epochs, episodes_per_epoch=EPISODES, **options)
    returns = np.array(history.history["episode_return"])
    content = b"".join(x.tobytes() for x in [*agent.get_weights(), returns])
    return hashlib.sha256(content).hexdigest()


@functools.cache
def undisturbed(kind):
    return train(kind)


@pytest.fixture(scope="module")
def pool():
    with tfr.collect.open_envs(Hands, 4, workers=2) as pool:
        yield pool


def stakes(env, num_envs=3, **options):
    """Returns the worth of the rounds won or lost in collected episodes."""
    episodes = renewed().collect(env, 12, num_envs=num_envs, **options)
    return {*np.abs(episodes.rewards).ravel().tolist()} - {0.0}


@pytest.mark.parametrize("kind", KINDS)
def test_changing_environments_give_one_training_in_any_number_of_processes(kind, pool):
    assert train(kind, num_envs=5) == train(kind, pool) == undisturbed(kind)


@pytest.mark.parametrize("env", [Hands, "pool"])
def test_environments_receive_the_settings_of_each_call(env, pool):
    env = pool if env == "pool" else env
    agent = renewed()
    assert stakes(env, reset_options={"bonus": [2.0]}) == {3.0}
    for level in (5.0, 6.0):
        assert stakes(env, env_attrs={"level": level}) == {level}
    assert stakes(env) == {1.0}  # the original value again
    settings = {"reset_options": lambda update: {"bonus": [update + 0.5]}}
    assert stakes(env, env_attrs=lambda update: {"level": 7.0}, **settings) == {7.5}
    assert agent.updates == 0
    won = {"opponent": (np.zeros((3, 3)), np.array([99.0, 0.0, 0.0]))}
    episodes = agent.collect(env, 9, env_attrs=won)
    assert (np.asarray(episodes.observations)[1:].sum((0, 1))[1:] == 0).all()


SYNC, ASYNC = gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv


def test_every_reset_of_a_vector_env_receives_the_options():
    with contextlib.closing(ASYNC([Hands] * 2, autoreset_mode="Disabled")) as env:
        options = {"reset_options": {"bonus": [2.0]}, "env_attrs": {"level": 5.0}}
        assert stakes(env, **options) == {7.0}
        with tfr.collect.open_envs(env, 2) as envs:
            for level in (3.0, 4.0):
                assert stakes(envs, env_attrs={"level": level}) == {level}
            assert stakes(envs) == {1.0}  # the original value
    with pytest.raises(ValueError, match="AutoresetMode.DISABLED"):
        stakes(SYNC([Hands] * 2), reset_options={"bonus": [2.0]})


def test_callback_may_set_attributes_of_an_environment_of_its_own():
    env = Hands()
    callback = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: setattr(env, "level", epoch)
    )
    digest = train("attribute", env, env_attrs=None, callbacks=callback)
    assert digest == undisturbed("function of attributes")


def test_constant_settings_also_apply_to_validation():
    """A function describes a curriculum, and all validations shall be alike."""
    levels, level = [], {"level": 3.0}
    options = {"validation_env": lambda: Hands(levels.append), "validation_episodes": 2}
    for env_attrs, expected in ((level, 3.0), (lambda update: level, 1.0)):
        levels.clear()
        train("attribute", epochs=1, env_attrs=env_attrs, **options)
        assert {*levels} == {expected}


LEVELS = []
INSTANCES = {"environment": lambda: Hands(LEVELS.append)} | {
    mode: lambda mode=mode: SYNC([INSTANCES["environment"]] * 2, autoreset_mode=mode)
    for mode in ("NextStep", "SameStep", "Disabled")
}


@pytest.mark.parametrize("name", INSTANCES)
def test_instance_has_its_own_attributes_in_validation_and_after_training(name):
    env, levels = INSTANCES[name](), []
    options = {"validation_env": env, "validation_episodes": 2}
    options["env_attrs"] = lambda update: {"level": 3.0 + update}
    if name == "Disabled":
        options["reset_options"] = lambda update: {"bonus": [2.0]}
    log = keras.callbacks.LambdaCallback()
    log.on_train_batch_begin = log.on_test_begin = lambda *_, logs=None: LEVELS.clear()
    log.on_train_batch_end = log.on_test_end = lambda *_, logs=None: levels.append(
        {*LEVELS}
    )
    train("attribute", env, epochs=2, callbacks=[log], **options)
    assert levels == [{3.0}, {1.0}, {4.0}, {1.0}]
    own = [env.level] if name == "environment" else env.get_attr("level")
    assert {*own} == {1.0}


def test_instance_has_its_own_attributes_after_an_error():
    env = Hands(lambda level: 1 / 0)
    with pytest.raises(tfr.collect.EnvironmentFault, match="ZeroDivisionError"):
        stakes(env, num_envs=1, env_attrs={"level": 3.0})
    assert env.level == 1.0


def fail_once(path, fail, level):
    """Fails at level 3 unless the file `path` exists."""
    if level == 3.0 and not path.exists():
        path.touch()
        fail()


def kill_process():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:An episode was dropped")
def test_new_environments_and_workers_receive_the_settings(tmp_path):
    kill = functools.partial(fail_once, tmp_path / "killed", kill_process)
    options = {"env_kwargs": {"failure": kill}, "on_env_error": "restart"}
    kind = "function of attributes"
    assert train(kind, num_envs=4, workers=2, **options) == undisturbed(kind)
    assert (tmp_path / "killed").exists()
    fail = functools.partial(fail_once, tmp_path / "failed", sys.exit)
    env = functools.partial(Hands, fail)
    with tfr.collect.open_envs(env, 1, on_env_error="restart") as envs:
        options = {"reset_options": {"bonus": [2.0]}, "env_attrs": {"level": 3.0}}
        assert stakes(envs, **options) == {5.0}
    assert (tmp_path / "failed").exists()


@pytest.mark.parametrize("kind", ["function of options", "self-play"])
def test_resumed_training_continues_the_changes(kind, tmp_path):
    train(kind, epochs=3, resume=tmp_path)
    assert train(kind, resume=tmp_path) == undisturbed(kind)


def test_attribute_that_does_not_exist_and_tensor_environments_are_refused(pool):
    with pytest.raises(ValueError, match="need Gymnasium environments"):
        agent = tfr.Reinforce.for_env("CartPole-v1", hidden=())
        agent.evaluate(tfr.envs.CartPole(), env_attrs={"length": 0.5})
    for env in (Hands, SYNC([Hands])):
        with pytest.raises(ValueError, match="cannot set the attribute 'levle'"):
            stakes(env, env_attrs={"levle": 3.0})
    with pytest.raises(ValueError, match="Worker .: `env_attrs` cannot set .* 'levle'"):
        stakes(pool, env_attrs={"levle": 3.0})
