"""Tests the table that compares runs, and its interquartile means and intervals."""

import itertools

import numpy as np
import pytest

from tf_reinforce.experiments import comparison
from tf_reinforce.experiments import curves


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 9.0], 4.0),  # with three values, none is left out
        ([9.0, 1.0, 2.0, 4.0], 3.0),
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0], 3.5),
        ([7.0], 7.0),
    ],
)
def test_interquartile_mean_leaves_out_a_quarter_on_each_side(values, expected):
    assert comparison.iqm(np.array(values)) == expected
    stacked = np.stack([values, values], axis=1)
    assert comparison.iqm(stacked).tolist() == [expected, expected]


@pytest.mark.parametrize("values", [[0.0, 3.0, 9.0], [0.0, 1.0, 4.0, 6.0, 11.0, 20.0]])
def test_interval_contains_the_exact_quantiles_of_all_resamples(values):
    """Three seeds have 27 resamples and six have 46,656, few enough to enumerate.

    The interval comes from 2,000 random ones. Its ends must lie within six standard
    errors of the exact quantiles. With six seeds, a 90 % interval would fail.
    """
    seeds = len(values)
    resamples = np.sort([*itertools.product(values, repeat=seeds)])
    exact = np.sort(resamples[:, seeds // 4 : seeds - seeds // 4].mean(1))
    interval = comparison.iqm_interval(values)
    assert interval.estimate == np.mean(values[seeds // 4 : seeds - seeds // 4])
    for end, probability in ((interval.low, 0.025), (interval.high, 0.975)):
        error = 6 * np.sqrt(probability * (1 - probability) / 2_000)
        low, high = (
            np.quantile(exact, np.clip(probability + sign * error, 0, 1), method=method)
            for sign, method in ((-1, "lower"), (1, "higher"))
        )
        assert low <= end <= high


def test_single_seed_has_no_interval_and_groups_may_have_different_sizes():
    estimate, low, high = comparison.iqm_interval([4.0])
    assert estimate == 4.0 and np.isnan(low) and np.isnan(high)
    interval = comparison.iqm_interval([5.0, 6.0, 7.0], [1.0, 2.0])
    assert interval.estimate == 4.5
    assert 3.0 <= interval.low < 4.5 < interval.high <= 6.0


def run(name, returns, evaluations=(), env="CartPole-v1"):
    """Returns a `Run` whose seeds have these mean returns in the last two updates."""
    made = [
        curves.Curve(
            "log.csv",
            seed,
            {
                "epoch": np.arange(20.0),
                "env_steps": 100.0 * np.arange(1, 21),
                "episode_return": np.array(18 * [0.0] + [value - 9, value + 9]),
            },
        )
        for seed, value in enumerate(returns)
    ]
    return curves.Run(name, env, made, [*evaluations])


def test_row_contains_the_last_tenth_of_the_updates():
    [row] = comparison.compare([run("a", [1.0, 2.0, 6.0])])
    assert (row.seeds, row.env_steps, row.last_return.estimate) == (3, 2000.0, 3.0)
    assert row.evaluation is None and row.difference is None and np.isnan(row.seconds)


def test_difference_is_that_of_evaluations_if_all_runs_have_them():
    runs = [run("a", [1.0, 1.0], [10.0, 12.0]), run("b", [5.0, 5.0], [20.0, 22.0])]
    assert comparison.compare(runs)[1].difference.estimate == 10.0
    runs[0].evaluations.pop()  # one evaluation is missing
    rows = comparison.compare(runs)
    assert rows[0].evaluation is None
    assert rows[1].difference.estimate == 4.0


def test_run_with_another_environment_has_no_difference():
    runs = [run("a", [1.0, 2.0]), run("b", [3.0], env="Acrobot-v1")]
    assert comparison.compare(runs)[1].difference is None


def test_table_has_a_line_for_each_run():
    text = comparison.table(comparison.compare([run("a", [1.0] * 2), run("bc", [4.0])]))
    about, table = (part.splitlines() for part in text.split("\n\n"))
    names = [["a", "CartPole-v1", "?"], ["bc", "CartPole-v1", "?"]]
    assert [line.split()[:3] for line in about] == names
    header, first, ends, second = table
    assert header.split()[:3] == ["run", "seeds", "steps"]
    assert first.split() == ["a", "2", "2,000", "1"] and ends.split() == ["[1,", "1]"]
    assert second.split() == ["bc", "1", "2,000", "4", "3"]
    assert first.index("2,000") == second.index("2,000")


def test_ordinary_table_fits_a_terminal():
    """Long values, and names of ten characters."""
    seeds = [[4987.321 + 9 * seed, -4321.123 - 7 * seed] for seed in range(4)]
    runs = [run(name, values) for name, values in zip(["a" * 10, "b" * 10], seeds)]
    lines = comparison.table(comparison.compare(runs)).splitlines()
    assert max(map(len, lines)) <= 80


DETERMINISTIC = ["evaluation.deterministic"]


def test_settings_that_differ_are_listed():
    """A run that lacks a setting of `fit` has its default; one of agents is unknown."""
    tables = [{"fit": {"steps": 9, "epochs": 1}}, {"fit": {"steps": 8, "epochs": 1}}]
    tables[0] |= {"agent": {"gamma": 0.9, "baseline": {"kind": "value"}}}
    tables[1] |= {"agent": {"gamma": "\x1b[2J", "hidden": [4]}}
    tables[1] |= {"make_agent": "m:f"}
    del tables[1]["fit"]["steps"]
    runs = [curves.Run(x, None, [], [], settings=t) for x, t in zip("ab", tables)]
    lines = comparison.differences(runs).splitlines()
    rows = [
        ["setting", "a", "b"],
        ["agent.gamma", "0.9", "?[2J"],
        ["fit.steps", "9", "-"],
        ["make_agent", "-", "m:f"],
    ]
    assert sorted(line.split() for line in lines) == sorted(rows)
    assert comparison.differences(runs[:1] * 2) == ""
    tables = [
        {"make_agent": "m:f", "agent": {}},
        {"make_agent": "m:f", "agent": {"n": 3}},
    ]
    tables.append({**tables[1], "evaluation": {"deterministic": False}})
    runs = [curves.Run(x, None, [], [], settings=t) for x, t in zip("abc", tables)]
    rows = [line.split() for line in comparison.differences(runs).splitlines()]
    assert rows[1:] == [["agent.n", "-", "3", "3"], [*DETERMINISTIC, "-", "-", "false"]]
