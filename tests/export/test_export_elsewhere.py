"""Tests the export in a virtual environment that has only TensorFlow."""

import subprocess
import sys
import venv

import numpy as np
import pytest
import toys

import tf_reinforce as tfr

READER = """
import sys
import numpy as np
import tensorflow as tf

folder, data = sys.argv[1:]
policy = tf.saved_model.load(folder)
given = np.load(data)
observations = tf.constant(given["observations"])
greedy = policy.act(observations)["action"]
drawn = policy.sample(observations, tf.constant(11, tf.int64))
scored = policy.log_prob(observations, drawn["raw_action"])["log_prob"]
np.savez(
    data.replace("given", "answer"),
    greedy=greedy,
    action=drawn["action"],
    raw_action=drawn["raw_action"],
    log_prob=scored,
)
"""

REMEMBERS = """
import sys
import numpy as np
import tensorflow as tf

folder, data = sys.argv[1:]
policy = tf.saved_model.load(folder)
columns = np.load(data)["observations"]
state = policy.initial_state(tf.constant(columns.shape[1]))
actions = []
for observations in columns:
    answer = policy.act(tf.constant(observations), state)
    actions.append(answer["action"])
    state = {name: answer[name] for name in state}
np.savez(data.replace("given", "answer"), actions=np.stack(actions))
"""

ALONE = """
for name in ("tensorflow_probability", "tf_reinforce", "gymnasium"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} is here: this proves nothing")
"""


def run_reader(python, reader, folder, **given):
    """Runs the reader on the export in another interpreter; returns its arrays."""
    np.savez(folder / "given.npz", **given)
    (folder / "reader.py").write_text(reader + ALONE)
    command = [python, folder / "reader.py", folder / "policy", folder / "given.npz"]
    subprocess.run(command, check=True)
    return np.load(folder / "answer.npz")


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_actions_and_log_probs_in_another_venv_equal_the_agent(
    env, tensorflow_only, tmp_path
):
    """1,000 actions have equal bits, because the wheel of TensorFlow is the same."""
    agent = tfr.Reinforce.for_env(env, normalize_observations=True)
    agent.fit(env, epochs=3, episodes_per_epoch=4, verbose=0)
    agent.export(tmp_path / "policy")
    size = agent.observation_space.shape
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((1000, *size)).astype("float32")
    answer = run_reader(tensorflow_only, READER, tmp_path, observations=observations)
    np.testing.assert_array_equal(
        answer["greedy"], agent.act(observations, deterministic=True)
    )
    np.testing.assert_array_equal(answer["action"], agent.act(observations, seed=11))
    distribution = agent.head.distribution(agent(observations))
    np.testing.assert_allclose(
        answer["log_prob"], distribution.log_prob(answer["raw_action"]), rtol=1e-6
    )


@pytest.mark.slow
def test_recurrent_policy_solves_recall_and_its_export_acts_the_same(
    tensorflow_only, tmp_path
):
    """A feedforward policy has the return of random answers."""
    example = toys.example("recurrent")
    for remembers in (False, True):
        agent = example.train_agent(remembers, epochs=200, verbose=0)
        found = agent.evaluate(example.Recall, episodes=2_000)["episode_return"]
        if not remembers:
            spread = np.sqrt(0.25 * 0.75 / 2_000)
            assert abs(found - 0.25) < 6 * spread
    assert found >= 0.99
    agent.export(tmp_path / "policy")
    with tfr.collect.open_envs(example.Recall, 8) as envs:
        request = toys.request(episodes=100, stream="evaluation", deterministic=True)
        played = agent.trainer.collector.collect(envs, request).episodes
    columns = played.observations[:-1]
    answer = run_reader(tensorflow_only, REMEMBERS, tmp_path, observations=columns)
    np.testing.assert_array_equal(answer["actions"], played.actions)


@pytest.fixture(scope="module")
def tensorflow_only(tmp_path_factory):
    """Returns the interpreter of a new virtual environment with only TensorFlow."""
    home = tmp_path_factory.mktemp("elsewhere") / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "tensorflow>=2.21,<2.22"]
    subprocess.run(install, check=True, stdout=sys.stderr)
    return python
