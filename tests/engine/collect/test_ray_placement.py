"""Tests how workers are spread over the machines of a Ray cluster."""

import math

import pytest

from tf_reinforce.engine.collect import ray_placement


@pytest.mark.parametrize(
    ("count", "cores_each", "free", "expected"),
    [
        (3, 1, {"a": 4, "b": 4}, {"a": 2, "b": 1}),
        (5, 1, {"a": 1, "b": 9}, {"b": 5}),
        (5, 1, {"a": 4, "b": 2}, {"a": 4, "b": 1}),
        (9, 1, {"a": 2, "b": 2}, {"a": 2, "b": 2}),  # five workers are not placed
        (9, 2, {"a": 5, "b": 1}, {"a": 2}),
        (3, 0.5, {"a": 1}, {"a": 2}),
        (9, 0.3, {"a": 1.0}, {"a": 3}),
        (9, 0.5, {"a": 2.9}, {"a": 4}),  # Ray reserves no 2.5 cores
        (4, 0, {"head": 0, "a": 1, "b": 1}, {"a": 2, "b": 2}),
        (2, 1, {}, {}),
        (2, 1, {"a": 0}, {}),
    ],
)
def test_workers_go_to_the_machines_with_the_most_free_cores(
    count, cores_each, free, expected
):
    assert ray_placement.place(count, cores_each, free) == expected


@pytest.mark.parametrize("cores_each", [0.1, 0.25, 0.3, 0.7, 1, 1.5, 2, 3])
@pytest.mark.parametrize("cores", [0.4, 1, 1.9, 2, 3.5, 7, 16])
def test_largest_number_of_workers_that_the_free_cores_allow(cores_each, cores):
    placed = ray_placement.place(1_000, cores_each, {"a": cores}).get("a", 0)
    reservations = (ray_placement.reservation(n, cores_each) for n in range(1, 1_000))
    assert placed == sum(reserved <= cores for reserved in reservations)


@pytest.mark.parametrize("cores_each", [0, 0.1, 0.3, 0.75, 1, 1.1, 4])
def test_reservation_is_one_that_ray_accepts(cores_each):
    for count in range(1, 50):
        reserved = ray_placement.reservation(count, cores_each)
        assert reserved >= count * cores_each - 1e-9
        assert reserved < count * cores_each + 1
        assert reserved < 1 or reserved == math.floor(reserved)
