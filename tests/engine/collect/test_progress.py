"""Tests the record of what a worker does."""

from tf_reinforce.engine.collect import progress


def test_description_names_call_environment_episode_and_step():
    one = progress.Progress(3)
    assert not one.is_in_episode() and one.describe(0) == "waiting for a request"
    one.start_episode(2, number=7, row=40)
    assert one.describe(first_index=10) == "reset of environment 12, episode 7"
    assert one.is_in_episode()
    one.words[progress.STATE] = progress.STEP
    one.words[progress.ROW] = 45
    assert one.describe(10) == "step of environment 12, episode 7, step 5"
    one.words[progress.STATE] = progress.CLOSING
    assert one.describe(10) == "close of environment 12"
    one.words[progress.STATE] = progress.STARTING
    assert one.describe(10) == "start"


def test_snapshot_changes_with_every_call_of_an_environment():
    one = progress.Progress(2)
    seen = {one.snapshot()}
    one.start_episode(0, 0, 0)
    seen.add(one.snapshot())
    for row in range(3):
        for env_index in range(2):
            one.words[progress.STATE] = progress.STEP
            one.words[progress.ENV] = env_index
            seen.add(one.snapshot())
        one.words[progress.ROW] = row + 1
    assert len(seen) == 2 + 6


def test_two_processes_share_the_memory():
    memory = bytearray(progress.size(1))
    ours, theirs = progress.Progress(1, memory), progress.Progress(1, memory)
    theirs.start_episode(0, 4, 9)
    assert ours.describe(0) == "reset of environment 0, episode 4"
