"""The export in a virtual environment that has only TensorFlow."""

import subprocess
import sys
import venv

import numpy as np
import pytest

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
for name in ("tensorflow_probability", "tf_reinforce", "gymnasium"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} is here: this proves nothing")
"""


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_actions_samples_and_log_probabilities_are_the_same(
    env, tensorflow_only, tmp_path
):
    """1,000 observations; the same wheel of TensorFlow, and so the same bits."""
    agent = tfr.Reinforce.for_env(env, normalize_observations=True)
    agent.fit(env, epochs=3, episodes_per_epoch=4, verbose=0)
    agent.export(tmp_path / "policy")
    size = agent.observation_space.shape
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((1000, *size)).astype("float32")
    np.savez(tmp_path / "given.npz", observations=observations)
    (tmp_path / "reader.py").write_text(READER)
    subprocess.run(
        [
            tensorflow_only,
            tmp_path / "reader.py",
            tmp_path / "policy",
            tmp_path / "given.npz",
        ],
        check=True,
    )
    answer = np.load(tmp_path / "answer.npz")
    np.testing.assert_array_equal(
        answer["greedy"], agent.act(observations, deterministic=True)
    )
    np.testing.assert_array_equal(answer["action"], agent.act(observations, seed=11))
    distribution = agent.head.distribution(agent(observations))
    np.testing.assert_allclose(
        answer["log_prob"], distribution.log_prob(answer["raw_action"]), rtol=1e-6
    )


@pytest.fixture(scope="module")
def tensorflow_only(tmp_path_factory):
    """The interpreter of a fresh virtual environment with TensorFlow and no more."""
    home = tmp_path_factory.mktemp("elsewhere") / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "tensorflow>=2.21,<2.22"]
    subprocess.run(install, check=True, stdout=sys.stderr)
    return python
