"""Tests that `check_export` finds differences, and tolerates only ties."""

import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce.export import formats
from tf_reinforce.testing import export_report


@pytest.fixture(scope="module")
def agent():
    keras.utils.set_random_seed(0)
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(8,))
    agent.fit("CartPole-v1", epochs=1, episodes_per_epoch=4, verbose=0)
    return agent


@pytest.fixture(scope="module")
def path(agent, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "policy"
    agent.export(path, format="onnx")
    return path


def test_results_of_all_functions_on_played_observations_are_equal(agent, path):
    report = tfr.testing.check_export(agent, path, "CartPole-v1", observations=50)
    assert report.passed and report.played and report.observations == 50
    assert set(report.differences) == {
        "act/action",
        "distribution/logits",
        "distribution/probs",
        "sample/action",
        "sample/raw_action",
    }
    assert "maximal difference" in str(report) and "50 played" in str(report)


def test_changed_weights_of_the_agent_fail_the_check(agent, path):
    weights = agent.get_weights()
    bias = agent.policy.layers[-1].bias
    bias.assign(bias + [0.0, 1e-3])
    report = export_report.check_export(agent, path)
    assert not report.passed
    assert 1e-4 < report.differences["distribution/logits"] < 2e-3
    agent.set_weights(weights)
    assert export_report.check_export(agent, path).passed


def test_export_with_other_functions_raises(agent, path, tmp_path):
    broken = tmp_path / "policy"
    shutil.copytree(path, broken)
    metadata = json.loads((broken / "policy.json").read_text())
    del metadata["functions"]["sample"]
    (broken / "policy.json").write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match="must be an export of `agent`"):
        export_report.check_export(agent, broken)


@pytest.mark.parametrize("tied", [True, False])
def test_only_actions_that_a_rounding_error_may_change_are_ties(
    tied, agent, path, monkeypatch
):
    """The logits differ by 1e-6 or by 1e-3, and the export selects the other action."""
    dense = agent.policy.layers[-1]
    weights = agent.get_weights()
    dense.kernel.assign(tf.zeros_like(dense.kernel))
    dense.bias.assign([0.0, 1e-6 if tied else 1e-3])

    def load(path):
        own = agent.trainer.live_policy().functions_for("onnx")
        loaded = {
            name: lambda inputs, name=name: {
                key: x.numpy() for key, x in own[name](*inputs.values()).items()
            }
            for name in own
        }
        return {**loaded, "act": lambda inputs: {"action": np.zeros(20, "int64")}}

    monkeypatch.setattr(formats, "load", load)
    report = export_report.check_export(agent, path, observations=20)
    assert report.ties == (20 if tied else 0) and report.passed == tied
    agent.set_weights(weights)


def test_other_number_type_or_missing_result_is_an_infinite_difference():
    expected = np.zeros(3, "float32")
    for result in (None, np.zeros(3), np.zeros(2, "float32")):
        assert np.isinf(export_report._differences(result, expected)).all()
    both = np.array([np.inf, np.nan, -np.inf], "float32")
    assert export_report._differences(both, both).tolist() == [0, 0, 0]
    assert np.isinf(export_report._differences(expected, both)).all()
    large = np.array([2e6], "float32")
    assert export_report._differences(large + 1, large) == 0.5e-6
