"""Decides how many workers each machine of a Ray cluster receives."""

import heapq
import math


def place(count, cores_each, free):
    """Spreads workers over machines; each machine has one actor for all of its workers.

    Each worker goes to the machine that then has the most free cores.

    Args:
        count: Int, the number of workers.
        cores_each: Non-negative number, the cores that a worker reserves. With 0, every
            machine that has cores may receive any number of workers.
        free: Dict from names of machines to the number of their free cores.

    Returns:
        Dict from names of machines to positive numbers of workers. If there are too few
        free cores, these are fewer workers than `count`.
    """
    rooms = {name: _room(cores, cores_each) for name, cores in free.items() if cores > 0}
    heap = [(-cores, name) for name, cores in free.items() if rooms.get(name)]
    heapq.heapify(heap)
    placed = {}
    for _ in range(count):
        if not heap:
            break
        cores, name = heap[0]
        placed[name] = placed.get(name, 0) + 1
        if placed[name] < rooms[name]:
            heapq.heapreplace(heap, (cores + (cores_each or 1), name))
        else:
            heapq.heappop(heap)
    return placed


def reservation(count, cores_each):
    """Returns the number of cores that an actor with several workers reserves.

    Ray accepts fractions below 1 only.
    """
    cores = math.ceil(round(count * cores_each * 10_000, 3)) / 10_000  # Ray's precision
    return cores if cores <= 1 else math.ceil(cores)


def _room(cores, cores_each):
    """Returns the largest number of workers that a machine with free cores can have."""
    if not cores_each:
        return math.inf
    usable = math.floor(cores) if cores > 1 else cores
    return math.floor(usable / cores_each + 1e-9)
