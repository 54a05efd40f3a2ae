"""Tests that a process killed while saving leaves the old or the new complete file."""

import itertools
import os
import pathlib
import signal
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import tf_reinforce as tfr

TRIALS = 60
CALLS = 300_000  # about three saves
ROOT = pathlib.Path(__file__).parent.parent

# One process prepares an agent. Each trial is a fork that saves in a loop, with all
# weights equal to the number of the save. The fork is killed after a given number of
# calls of its interpreter, because a number of calls is repeatable and a time is not.
CHILD = """
import os, signal, sys, warnings
import numpy as np
import tf_reinforce as tfr

warnings.simplefilter("ignore")
agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(8,))
agent.fit("CartPole-v1", epochs=1, episodes_per_epoch=2, verbose=0)

def save(number):
    for variable in agent.policy.weights:
        variable.assign(np.full(variable.shape, number, "float32"))
    agent.save(sys.argv[1])

save(0)
print("ready", flush=True)
for line in sys.stdin:
    first, left = map(int, line.split())
    child = os.fork()
    if child == 0:
        def count(frame, event, argument):
            global left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
        while True:
            save(first)
            first += 1
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def saver(tmp_path_factory):
    """Yields the path of the file, and a function that runs one child until its kill."""
    path = tmp_path_factory.mktemp("kills") / "agent.keras"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", CHILD, str(path)]
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        assert process.stdout.readline() == "ready\n"

        def trial(first, calls):
            process.stdin.write(f"{first} {calls}\n")
            process.stdin.flush()
            return os.waitstatus_to_exitcode(int(process.stdout.readline()))

        yield path, trial


@pytest.mark.slow
def test_file_is_complete_after_a_kill_at_any_moment_of_saving(saver):
    path, trial = saver
    rng = np.random.default_rng(0)
    found = [0.0]
    for number in range(1, TRIALS + 1):
        assert trial(1000 * number, int(rng.integers(CALLS))) == -signal.SIGKILL
        assert zipfile.ZipFile(path).testzip() is None
        weights = np.concatenate([x.ravel() for x in tfr.load(path).policy.get_weights()])
        assert len(set(weights)) == 1, "the file mixes two saves"
        found.append(float(weights[0]))
    assert found == sorted(found)
    # Some children were killed in their first save, and others after a complete save.
    left = sum(later == earlier for earlier, later in itertools.pairwise(found))
    assert 0 < left < TRIALS
