"""Ends the worker processes of a pool whose process has died.

The pool starts this file as a program. The guard reads the numbers of worker processes
from its standard input, which ends when the process of the pool ends, however it ends.
"""

import os
import signal
import sys
import time

_GRACE = 5.0  # seconds in which workers may close their environments


def main():
    """Reads "+pid" and "-pid" until the input ends, and then ends these processes."""
    workers = set()
    for line in sys.stdin:
        change = workers.add if line[0] == "+" else workers.discard
        change(int(line[1:]))
    for pid in workers:
        end_group(pid, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE
    while time.monotonic() < deadline and any(end_group(pid, 0) for pid in workers):
        time.sleep(0.05)
    for pid in workers:
        end_group(pid, signal.SIGKILL)


def end_group(pid, number):
    """Sends a signal to a process group; returns whether the group exists."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
