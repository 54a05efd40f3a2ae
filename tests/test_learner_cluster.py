"""Tests which learner processes environment variables describe."""

import json

import pytest

from tf_reinforce import learner_cluster

WORKERS = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}
SLURM = {
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "n[09-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_JOB_ID": "40007",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
}


def tf_config(cluster, kind="worker", index=0):
    task = {"type": kind, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TF_CONFIG": ""},
        {"TF_CONFIG": "{}"},
        tf_config({"worker": ["10.0.0.1:2222"]}),
        {"SLURM_STEP_NUM_TASKS": "1"},
        {**SLURM, "TF_CONFIG": "{}"},  # so that the tasks of a step train separately
    ],
)
def test_one_process_is_no_cluster(environ):
    assert learner_cluster.from_environment(environ) is None


def test_processes_are_numbered_from_the_chief_on():
    cluster = {"worker": ["b:1", "c:1"], "chief": ["a:1"]}
    for kind, index, number in [("chief", 0, 0), ("worker", 0, 1), ("worker", "1", 2)]:
        found = learner_cluster.from_environment(tf_config(cluster, kind, index))
        assert found.hosts == ("a:1", "b:1", "c:1") and found.number == number


def test_slurm_tasks_have_one_port_for_each_task_of_a_node():
    """The port depends on the job, so that two jobs may use one node."""
    found = learner_cluster.from_environment(SLURM)
    assert found.hosts == ("n09:12007", "n09:12008", "n10:12007") and found.number == 2
    config = json.loads(found.tf_config)
    assert config["task"] == {"type": "worker", "index": 2}
    assert config["cluster"] == {"worker": list(found.hosts)}


def test_lists_of_nodes_and_counts_are_expanded():
    """The first list is in the order of Slurm, and not sorted."""
    nodes = ["n9", "n10", "a", "r0x01-ib", "r0x02-ib", "r1x01-ib", "r1x02-ib"]
    assert list(learner_cluster._expand("n[9-10],a,r[0-1]x[01-02]-ib")) == nodes
    assert list(learner_cluster._repeat("2(x3),1")) == [2, 2, 2, 1]


@pytest.mark.parametrize(
    "change, received",
    [
        (
            {"SLURM_NODEID": "0", "SLURM_LOCALID": "1"},
            "task 2, which is task 1 of node 0",
        ),
        ({"SLURM_NODEID": "2"}, "of node 2"),
        ({"SLURM_STEP_NODELIST": "n[a-b]"}, r"the tasks \[\]"),
        ({"SLURM_PROCID": ""}, "SLURM_PROCID=''"),
    ],
)
def test_slurm_variables_that_contradict_each_other_are_refused(change, received):
    """In the first case, the tasks are numbered cyclically: 0 and 2 on the node 0."""
    with pytest.raises(ValueError, match=received):
        learner_cluster.from_environment({**SLURM, **change})


@pytest.mark.parametrize(
    "environ, reason",
    [
        ({"TF_CONFIG": "{"}, "no JSON"),
        ({"TF_CONFIG": "[]"}, 'no "cluster"'),
        ({"TF_CONFIG": '{"task": {}}'}, 'no "cluster"'),
        (tf_config({"worker": "10.0.0.1:2222"}), "no lists"),
        (tf_config({"worker": ["10.0.0.1"]}), "no lists"),
        (tf_config({**WORKERS, "ps": ["10.0.0.3:2222"]}), "the job 'ps'"),
        (tf_config(WORKERS, "evaluator"), 'no type "worker"'),
        (tf_config(WORKERS, index=True), "with an index"),
        (tf_config(WORKERS, index=2), "not in its"),
        (tf_config(WORKERS, "chief"), "not in its"),
        ({"TF_CONFIG": json.dumps({"cluster": WORKERS})}, 'no type "worker"'),
    ],
)
def test_invalid_tf_config_is_refused(environ, reason):
    with pytest.raises(
        ValueError, match=f"{reason}.*Expected.*Received.*unset TF_CONFIG"
    ):
        learner_cluster.from_environment(environ)
