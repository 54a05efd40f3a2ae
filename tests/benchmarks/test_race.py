"""Tests the benchmark race: the order of requests, the comparisons and the report."""

import importlib
import pathlib
import sys

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks" / "race"
sys.path.insert(0, str(FOLDER))
protocol, races, report = map(importlib.import_module, ("protocol", "races", "report"))


class Peer:
    """A worker that returns the weights as the gradient."""

    def __init__(self, name, change=0.0):
        self.name = name
        self.change = change

    def request(self, op, weights, **arguments):
        assert op == "gradient" and {"observations", "actions", "lengths"} <= {*arguments}
        return {"gradients": [np.add(w, self.change * np.max(w)) for w in weights]}


def test_equal_gradients_exits_if_a_gradient_differs():
    errors = races.equal_gradients([Peer("a"), Peer("b"), Peer("c", 5e-6)])
    assert errors["b"] == 0 and 0 < errors["c"] < 1e-5
    with pytest.raises(SystemExit, match="c has another gradient: 2"):
        races.equal_gradients([Peer("a"), Peer("c", 2e-5)])


def test_rates_shuffles_the_order_in_each_round_and_drops_the_first():
    calls = []

    def answering(name):
        def answer(number):
            calls.append((number, name))
            return {"steps": 10 * (number + 1), "seconds": 2.0}

        return answer

    found = races.rates({name: answering(name) for name in "abc"}, 4)
    assert found == dict.fromkeys("abc", [5.0, 10.0, 15.0, 20.0])
    assert [number for number, _ in calls] == sorted(list(range(-1, 4)) * 3)
    permutations = {
        tuple(name for n, name in calls if n == number) for number in range(-1, 4)
    }
    assert len(permutations) > 1 and all(
        set(order) == set("abc") for order in permutations
    )


def test_ratio_is_the_median_over_rounds():
    """Each round is slower than the round before, and the ratio of each round is 2."""
    theirs = np.array([5.0, 4.0, 3.0, 2.0])
    assert report.ratio(2 * theirs, theirs) == "2.00 (2.00 to 2.00)"


def test_train_until_solved_does_not_count_evaluation_time(monkeypatch):
    clock, values = [0.0], iter([100.0, 475.0])

    def tick(seconds, value):
        clock[0] += seconds
        return value

    monkeypatch.setattr(protocol.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(
        protocol, "greedy_return", lambda greedy, seed: tick(50, next(values))
    )
    found = protocol.train_until_solved(lambda: tick(2, 30), None, limit=1000)
    assert found == {"seconds": 4, "steps": 60, "return": 475}


def test_time_update_does_not_count_preparation_and_the_first_call(monkeypatch):
    clock, taken = [0.0], iter([90.0, 5.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0])

    def tick(seconds):
        clock[0] += seconds
        return [seconds]

    monkeypatch.setattr(protocol.time, "perf_counter", lambda: clock[0])
    found = protocol.time_update(lambda _: tick(next(taken)), 8000, lambda: tick(50))
    assert found == {"seconds": 4, "rows": 8000}  # the first call compiles
    found = protocol.time_training(lambda: 30 * tick(2)[0] / 2, 100)
    assert found == {"seconds": 8, "steps": 120}


def test_greedy_return_uses_the_first_episode_of_each_environment():
    """CartPole terminates within 12 steps if it is always pushed to one side."""

    def always_left(observations):
        return np.zeros(len(observations))

    assert 8 < protocol.greedy_return(always_left, seed=0) < 10.5

    def balancing(observations):
        x, speed, angle, turning = observations.T
        return angle + 0.5 * turning + 0.05 * speed + 0.01 * x > 0

    assert protocol.greedy_return(balancing, seed=0) == 500


def test_worker_answers_requests_until_an_error(tmp_path):
    script = tmp_path / "echo.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n"
        "import protocol\n"
        "def double(x):\n"
        "    print('libraries like to print')\n"
        "    return {'twice': 2 * x, 'given': sys.argv[1]}\n"
        "protocol.serve({'double': double})\n"
    )
    worker = protocol.Worker("echo", sys.executable, script, "more")
    answer = worker.request("double", x=21)
    assert (answer["twice"], answer["given"]) == (42, "more")
    assert worker.request("memory")["most"] > 0
    with pytest.raises(RuntimeError, match="echo ended without an answer to unknown"):
        worker.request("unknown")
    worker.close()


def test_race_report_has_a_section_for_each_race(tmp_path):
    rates = {report.OURS: [20.0, 22.0], "other": [10.0, 11.0]}
    solved = {"seconds": 0.2, "steps": 9000, "return": 500.0}
    solved.update(imports=3.0, most=0.5)
    both = dict.fromkeys((report.OURS, "other"), [solved, solved])
    run = {"steps": 90, "seconds": 9.0, "gigabytes": 1.0, "returns": [[20, 30], [40, 50]]}
    found = {
        "compiled": {"errors": {"other": 1e-6}, "rates": {"64": rates}},
        "host": {"errors": {"other": 1e-6}, "rates": rates},
        "mujoco": {"rates": rates},
        "ppo": {"rates": {"Ant-v5": {**rates, "Stable-Baselines3 PPO": [8.0, 11.0]}}},
        "parts": {"act": {"8": rates}, "learn": rates},
        "solve": {"answers": both},
        "cold": {"answers": both},
        "compiled_solve": {"answers": [solved], "whole": [solved]},
        "stepping": {"rates": {"8": {"vectorized": [5.0], "played": [6.0]}}},
        "scaling": {
            "runs": {"64": {"seconds": [1e-6], "gigabytes": 0.1}},
            "long": {"steps": 10, "used": [0.9, 0.9]},
        },
        "seeds": {
            "alone": [run],
            "together": run,
            "more": [
                {
                    "alone": [run, {**run, "steps": 120, "seconds": 12.0}],
                    "together": [run, {**run, "steps": 180, "seconds": 12.0}],
                }
            ],
        },
    }
    assert set(found) == set(races.RACES) == set(report.SECTIONS)
    found = {name: {**race, "machine": report.machine()} for name, race in found.items()}
    report.write(found, tmp_path / "RESULTS.md")
    page = (tmp_path / "RESULTS.md").read_text()
    assert page.count("\n## ") == len(found)
    assert "| other | 10 | 2.00 (2.00 to 2.00) |" in page
    assert "| Ant-v5 | 21 | 10 | 2.25 (2.00 to 2.50) |" in page
    prose = " ".join(page.split())
    assert "**2 times sooner**" in prose
    assert "**30 (30 to 30) steps/s**; one" in prose
    assert "10 (10 to 10): 3.00 (3.00 to 3.00) times as many in 1 rounds." in prose
    for picture in ("solve.png", "seeds.png"):
        assert f"]({picture})" in page and (tmp_path / picture).stat().st_size > 1000
    assert max(map(len, (x for x in page.splitlines() if x[:1] not in "|!*"))) <= 90
