"""Tests models that several threads or processes use while one of them trains."""

import concurrent.futures
import contextlib
import functools
import os
import signal
import threading
import warnings

import gymnasium as gym
import keras
import language_models
import numpy as np
import pytest

import tf_reinforce as tfr

THREADS, CALLS, ENV = 4, 4, "Pendulum-v1"
OBSERVATIONS = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")


def make_agent():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(64, "tanh") for _ in range(2)]
    policy = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    agent = tfr.Reinforce(
        policy, gamma=0.9, normalize_observations=True, minibatch_size=16, passes=4
    )
    agent.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    return agent


@pytest.fixture(scope="module")
def pendulum_agent():
    """An agent for Pendulum-v1, shared because tracing it takes seconds."""
    agent = make_agent()
    agent.build_for_env(gym.make(ENV))
    return agent


def play(agent, number):
    """Returns the results of `evaluate`, `act` and `collect`; all weights affect them."""
    limit = {"max_episode_steps": 10}
    logs = agent.evaluate(ENV, 3, seed=number, num_envs=2, **limit)
    actions = agent.act(OBSERVATIONS, deterministic=number % 2 == 0, seed=number)
    # The update's number is a part of the random numbers of `collect`.
    episodes = agent.collect(ENV, 2, seed=number, num_envs=2, **limit)
    return logs["episode_return"], actions, episodes


def play_while_training(agent, epochs):
    """Trains in one thread and plays in four; returns all results and all weights."""
    fit = functools.partial(
        agent.fit, ENV, episodes_per_epoch=8, max_episode_steps=40, verbose=0
    )
    fit(epochs=1)  # traces, which would take longer than the training
    play(agent, 0)
    weights, start = [agent.get_weights()], threading.Barrier(THREADS + 1)
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: weights.append(agent.get_weights())
    )

    def train():
        start.wait()
        fit(epochs=epochs, callbacks=record)

    def play_often(thread):
        start.wait()
        results = []
        while len(results) < CALLS or not training.done():
            results.append((thread, play(agent, thread)))
        return results

    with concurrent.futures.ThreadPoolExecutor(THREADS + 1) as executor:
        training = executor.submit(train)
        results = [executor.submit(play_often, thread) for thread in range(THREADS)]
        training.result()
        return [pair for result in results for pair in result.result()], weights


def assert_serial(results, weights, agent):
    """Asserts that each result comes from the weights between two updates."""
    serial = {number: [] for number, _ in results}
    for values in weights:
        agent.set_weights(values)
        for number in serial:
            serial[number].append(play(agent, number))
    for number, (returns, actions, episodes) in results:
        each = [*zip(*serial[number], strict=True)]
        assert returns in each[0], number
        assert any(np.array_equal(actions, x) for x in each[1]), number
        assert any(np.array_equal(episodes.actions, x.actions) for x in each[2]), number


def test_threads_that_play_during_training_get_serial_results(caplog, pendulum_agent):
    results, weights = play_while_training(pendulum_agent, epochs=4)
    assert len(results) >= THREADS * CALLS
    assert_serial(results, weights, pendulum_agent)
    # A comparison with LiteRT that another thread disturbs would warn, and replace it.
    assert not [x for x in caplog.records if x.name == "tf_reinforce"]


@contextlib.contextmanager
def trained_by(model, *args, **kwargs):
    """Trains a model in a thread, which then waits for the end of the block."""
    begun, goes_on = threading.Event(), threading.Event()
    wait = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: (begun.set(), goes_on.wait(60))
    )
    kwargs = {"callbacks": [wait], "verbose": 0, **kwargs}
    first = threading.Thread(target=model.fit, args=args, kwargs=kwargs)
    first.start()
    try:
        assert begun.wait(60)
        yield
    finally:
        goes_on.set()
        first.join()


def test_agent_refuses_a_second_training(pendulum_agent):
    agent, updates = pendulum_agent, pendulum_agent.updates
    options = dict(epochs=1, episodes_per_epoch=2, max_episode_steps=5)
    episodes = agent.collect(ENV, 2, max_episode_steps=5)
    with trained_by(agent, ENV, **options):
        for train in (
            lambda: agent.fit(ENV, **options),
            lambda: agent.update(episodes),
            lambda: agent.compile("sgd"),
        ):
            with pytest.raises(RuntimeError, match="because another thread trains"):
                train()
    assert agent.updates == updates + 1
    # A callback may train the agent of its own `fit`.
    update = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: agent.update(episodes)
    )
    agent.fit(ENV, **options, callbacks=update, verbose=0)
    assert agent.updates == updates + 3


def score_function():
    inputs = keras.Input((2,))
    choice = tfr.layers.Sample(tfr.heads.Categorical(3))(keras.layers.Dense(3)(inputs))
    model = tfr.ScoreFunction(keras.Model(inputs, choice), reward=lambda x, y: y * 0.5)
    model.compile("sgd", run_eagerly=True)
    return model


def language_model():
    model = tfr.sequences.SequenceReinforce(
        language_models.text_gpt2(),
        lambda completions: [0.0] * len(completions),
        max_completion_length=4,
    )
    model.compile("sgd", run_eagerly=True)
    return model


def test_sampling_models_refuse_a_second_training():
    contexts, model = np.ones((2, 2)), score_function()
    with trained_by(model, contexts):
        with pytest.raises(RuntimeError, match="because another thread trains it"):
            model.fit(contexts, verbose=0)
        with pytest.raises(RuntimeError, match="`fit_logged` cannot change the Score"):
            model.fit_logged(contexts, np.zeros(2), np.ones(2), np.ones(2))
    model = language_model()
    with trained_by(model, ["a"]):
        completions = model.sample(["a"]).completions
        for train in (
            lambda: model.fit(["a"], verbose=0),
            lambda: model.compile("sgd"),
            lambda: model.apply_rewards(completions, np.zeros(4)),
        ):
            with pytest.raises(RuntimeError, match="cannot change the SequenceReinforce"):
                train()


def in_fork(function):
    """Calls a function in a forked process, and returns its error as text."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads in the parent
        process = os.fork()
    if process == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            function()
            os.write(writing, b"no error")
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        text = pipe.read()
    os.waitpid(process, 0)
    return text


def test_agent_raises_an_error_in_a_forked_process(pendulum_agent):
    use = functools.partial(pendulum_agent.act, OBSERVATIONS)
    assert in_fork(use).startswith("RuntimeError: This process was forked")


@pytest.mark.slow
def test_models_raise_an_error_in_a_forked_process(pendulum_agent):
    agent, contexts = pendulum_agent, np.ones((2, 2))
    sampling, language = score_function(), language_model()
    for use in (
        lambda: agent.fit(ENV, epochs=1),
        lambda: agent.evaluate(ENV),
        lambda: agent.collect(ENV),
        lambda: agent.act(OBSERVATIONS),
        lambda: agent.predict(OBSERVATIONS),
        lambda: make_agent().evaluate(ENV),
        lambda: sampling.fit(contexts),
        lambda: sampling.evaluate(contexts),
        lambda: sampling.predict(contexts),
        lambda: sampling.fit_logged(contexts, np.zeros(2), np.ones(2), np.ones(2)),
        lambda: sampling.sample_actions(contexts),
        lambda: language.fit(["a"]),
        lambda: language.evaluate(["a"]),
        lambda: language.generate(["a"]),
    ):
        assert in_fork(use).startswith("RuntimeError: This process was forked")
    assert in_fork(lambda: None) == "no error"
