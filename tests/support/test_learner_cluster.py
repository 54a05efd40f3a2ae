"""Tests which learner processes `TF_CONFIG` describes."""

import json

import pytest

from tf_reinforce.support import learner_cluster

WORKERS = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}


def tf_config(cluster, kind="worker", index=0):
    task = {"type": kind, "index": index}
    return json.dumps({"cluster": cluster, "task": task})


@pytest.mark.parametrize(
    "text", ["", "{}", '{"cluster": {}}', tf_config({"worker": ["10.0.0.1:2222"]})]
)
def test_one_process_is_no_cluster(text):
    assert learner_cluster.from_environment({"TF_CONFIG": text}) is None
    assert learner_cluster.from_environment({"SLURM_STEP_NUM_TASKS": "2"}) is None


def test_processes_are_numbered_from_the_chief_on():
    cluster = {"worker": ["b:1", "c:1"], "chief": ["a:1"]}
    for kind, index, number in [("chief", 0, 0), ("worker", 0, 1), ("worker", "1", 2)]:
        environ = {"TF_CONFIG": tf_config(cluster, kind, index)}
        found = learner_cluster.from_environment(environ)
        assert found.hosts == ("a:1", "b:1", "c:1") and found.number == number


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "3", '{"task": {}}', json.dumps({"cluster": WORKERS})),
        tf_config({"worker": "10.0.0.1:2222"}),
        tf_config({"worker": ["10.0.0.1"]}),
        tf_config({"worker": [3, 4]}),
        tf_config({**WORKERS, "ps": ["10.0.0.3:2222"]}),
        tf_config(WORKERS, "evaluator"),
        tf_config(WORKERS, index=2),
        tf_config(WORKERS, index=-1),
        tf_config(WORKERS, index=None),
        tf_config(WORKERS, "chief"),
    ],
)
def test_invalid_tf_config_is_refused(text):
    with pytest.raises(ValueError, match=r"must be.*Received: TF_CONFIG=.*unset"):
        learner_cluster.from_environment({"TF_CONFIG": text})
