"""Tests that the benchmarks compute what they report, on small numbers."""

import importlib
import itertools
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import scipy.special
import scipy.stats

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "learning.py"


@pytest.fixture
def module(monkeypatch):
    """Returns a function that imports a module of the benchmarks."""
    for folder in ("benchmarks", "benchmarks/race"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    return importlib.import_module


class Peer:
    """A worker of a race that returns the weights as the gradient."""

    def __init__(self, name, change=0.0):
        self.name, self.change = name, change

    def request(self, op, weights, **arguments):
        assert op == "gradient" and {"observations", "actions", "lengths"} <= {*arguments}
        return {"gradients": [np.add(w, self.change * np.max(w)) for w in weights]}


def test_race_needs_equal_gradients_and_drops_the_first_round(module):
    races, report = module("races"), module("report")
    errors = races.equal_gradients([Peer("a"), Peer("b"), Peer("c", 5e-6)])
    assert errors["b"] == 0 and 0 < errors["c"] < 1e-5
    with pytest.raises(SystemExit, match="c has another gradient: 2"):
        races.equal_gradients([Peer("a"), Peer("c", 2e-5)])
    answer = lambda number: {"steps": 10 * (number + 1), "seconds": 2.0}  # noqa: E731
    found = races.rates(dict.fromkeys("abc", answer), 4)
    assert found == dict.fromkeys("abc", [5.0, 10.0, 15.0, 20.0])
    theirs = np.array([5.0, 4.0, 3.0, 2.0])  # each round is slower than the one before
    assert report.ratio(2 * theirs, theirs) == "2.00 (2.00 to 2.00)"


def test_time_until_solved_has_no_evaluations(module, monkeypatch):
    protocol, clock, values = module("protocol"), [0.0], iter([100.0, 475.0])

    def tick(seconds, value):
        clock[0] += seconds
        return value

    def always_left(observations):  # CartPole terminates within 12 steps
        return np.zeros(len(observations))

    assert 8 < protocol.greedy_return(always_left, seed=0) < 10.5
    monkeypatch.setattr(protocol.time, "perf_counter", lambda: clock[0])
    evaluate = lambda greedy, seed: tick(50, next(values))  # noqa: E731
    monkeypatch.setattr(protocol, "greedy_return", evaluate)
    found = protocol.train_until_solved(lambda: tick(2, 30), None, limit=1000)
    assert found == {"seconds": 4, "steps": 60, "return": 475}


def test_race_report_has_a_section_for_each_race_and_keeps_earlier_ones(module, tmp_path):
    races, report, page = module("races"), module("report"), tmp_path / "RESULTS.md"
    rates = {report.OURS: [20.0, 22.0], "other": [10.0, 11.0]}
    solved = [{"seconds": 0.2, "steps": 9000, "return": 500.0}] * 2
    found = {
        "compiled": {"errors": {"other": 1e-6}, "rates": {"64": rates}},
        "host": {"errors": {"other": 1e-6}, "rates": rates},
        "mujoco": {"rates": rates},
        "ppo": {"rates": {"Ant-v5": {**rates, "Stable-Baselines3 PPO": [8.0, 11.0]}}},
        "solve": {"answers": {report.OURS: solved, "other": solved}},
    }
    assert set(found) == set(races.RACES) == set(report.SECTIONS)
    found = {name: {**race, "machine": report.machine()} for name, race in found.items()}
    earlier = f"{report.EARLIER}\nkept\n"
    page.write_text(f"old{earlier}")
    report.write(found, page)
    text = page.read_text()
    assert text.count("\n## ") == len(found) + 1 and text.endswith(earlier)
    assert "| other | 10 | 2.00 (2.00 to 2.00) |" in text and "old" not in text
    assert "| Ant-v5 | 21 | 10 | 2.25 (2.00 to 2.50) |" in text
    assert (tmp_path / "solve.png").stat().st_size > 1000


def record(preset="Ant-v5", seed=0, means=(1.0, 5.0, 2.0), final=3.0, **more):
    """Returns a finished run of 100 steps, evaluated at steps 0, 53 + seed, and 101."""
    points = zip((0, 53 + seed, 101), means)
    return {
        **{"preset": preset, "seed": seed, "steps": 100, "every": 50, "finished": True},
        "settings": {"env": "-".join(preset.split("-")[:2])},
        "versions": {"python": "3.11"},
        "curve": [[taken, mean, 0.0, 1.0] for taken, mean in points],
        **{"training_seconds": 60.0, "evaluation_seconds": 30.0},
        **{"steps_per_second": 1000.0, "final": {"episode_return": final}, **more},
    }


def write_records(folder, *records):
    for number, found in enumerate(records):
        path = folder / found["preset"] / f"100_seed{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return folder


def test_learning_report_is_written_between_its_marks(module, tmp_path):
    """The mean of the two equal curves is at most 5, and its area per step is 3.25."""
    report, docs = module("learning_report"), tmp_path / "docs"
    docs.mkdir()
    (docs / "results.md").write_text(f"before {report.BEGIN} old {report.END} after")
    others = "Ant-v5-critic-free", "Ant-v5-one-pass", "HalfCheetah-v5", "CartPole-v1"
    finished = [record(), record(seed=1, final=5.0), *map(record, others)]
    unfinished = record("CartPole-v1", seed=1, finished=False)
    results = write_records(tmp_path / "results", *finished, unfinished)

    def write(results):
        return report.write(results, docs, lambda x: x["env"] == "HalfCheetah-v5")

    text = write(results)
    page = f"before {report.BEGIN}\n\n{text}\n\n{report.END} after"
    assert (docs / "results.md").read_text() == page
    assert "| Ant-v5 | 100 | 2 | 5.00 ± 0.00 | 3.25 ± 0.00 | 4.00 ± 1.00 |" in text
    assert "| 4.00 [3.00, 5.00] | 1,000 | 1.5 |" in text
    assert "### MuJoCo, critic-free" in text and "omit 1 unfinished" in text
    assert text.count("\n| HalfCheetah-v5 | 100 |") == 2  # also without a preset
    assert "run Ant-v5 --seeds 0-1 --steps 100 --every 50\n" in text
    kept = (docs / "results.jsonl").read_text()
    again = write(tmp_path / "none")  # published runs are kept
    assert again == text.replace("The tables omit 1 unfinished runs.\n\n", "")
    for number, wrong in enumerate(
        [record(seed=2, every=25), record(seed=1, means=(1.0, 5.0, 2.5))]
    ):
        with pytest.raises(SystemExit, match="other settings|one is in"):
            write(write_records(tmp_path / f"other{number}", wrong))
    assert (docs / "results.jsonl").read_text() == kept


def test_default_stands_for_the_settings_without_a_preset(module):
    settings = module("learning_settings")
    default = settings.read("Pendulum-v1-default")
    assert (default["env"], default["agent"]["gamma"]) == ("Pendulum-v1", 0.975)
    assert settings.is_default({**default, "fit": {**default["fit"], "steps": 9}})
    assert not settings.is_default(settings.read("CliffWalking-v1"))  # no time limit


def test_best_of_mean_and_interquartile_mean(module):
    report = module("learning_report")
    curves = np.array([[1.0, 5.0, 2.0], [3.0, 1.0, 4.0]])
    assert report.best_of_mean(curves) == (3.0, 2.0)
    assert report.interquartile_mean([100.0, 3.0, 1.0, 2.0, -50.0]) == 2.0


def benchmark(results, *options):
    """Starts a training process in its own process group, with its children."""
    command = [sys.executable, str(SCRIPT), "run", "CartPole-v1", "--seeds", "3"]
    return subprocess.Popen(
        [*command, *options, "--results", str(results)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


@pytest.mark.slow
def test_run_that_was_killed_ends_with_the_same_bits(tmp_path):
    options = ["--steps", "20000", "--every", "2500"]
    assert benchmark(tmp_path / "whole", *options).wait() == 0
    path = tmp_path / "killed" / "CartPole-v1" / "20000_seed3.json"
    process = benchmark(tmp_path / "killed", *options)
    while not path.exists() or len(json.loads(path.read_text())["curve"]) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not json.loads(path.read_text())["finished"]
    assert benchmark(tmp_path / "killed", *options).wait() == 0
    runs = []
    for name in ("whole", "killed"):
        runs.append(json.loads((tmp_path / name / "CartPole-v1" / path.name).read_text()))
        runs[-1]["curve"] = [point[:3] for point in runs[-1]["curve"]]
        for key in ("training_seconds", "evaluation_seconds", "steps_per_second"):
            del runs[-1][key]
    assert runs[0] == runs[1] and len(runs[0]["curve"]) >= 5 and runs[0]["finished"]


def test_parts_of_a_simulated_update_sum_to_its_total(module):
    model, rng = module("scale_model"), np.random.default_rng(0)
    zero = model.Costs(**dict.fromkeys(model.Costs._fields, 0.0))
    for cores in (None, 2):
        values = dict(zip(model.Costs._fields, rng.uniform(0.001, 0.01, 17)))
        task = model.Task(rng.integers(1, 30, 40).tolist(), 0.02, 0.001, 3, 2)
        result = model.simulate(model.Costs(**values), task, 7, cores=cores)
        assert sum(result[1:]) == pytest.approx(result.total)
    busy = model.Task([20] * 10, 0.0, 1.0)  # ten workers on two cores share them
    assert model.simulate(zero, busy, 10).total == 20
    assert model.simulate(zero, busy, 10, cores=2).total == 100


@pytest.mark.slow
def test_page_shows_the_stored_measurements_and_predictions_near_them(
    module, monkeypatch
):
    report, text = module("scale_report"), (ROOT / "docs" / "scale.md").read_text()
    numbers = json.loads((ROOT / "benchmarks" / "scale.json").read_text())
    assert report.costs_table(numbers) in text
    assert report.comparison_table(numbers) in text
    for row in report.compare(numbers):
        assert abs(statistics.median(row["ratios"]) - 1) < 0.15, row
    monkeypatch.chdir(ROOT)
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    world = {}
    exec(compile(block, "scale.md", "exec"), world)
    assert 100 < world["speed_up"] < 1000


@pytest.mark.parametrize("latent", ["bits", "categories"])
def test_bound_of_a_discrete_vae_is_that_of_all_its_codes(latent, module, monkeypatch):
    """-ELBO = Σ_z q(z|x) (log q(z|x) - log p(z) - log p(x|z)), for a uniform prior."""
    pytest.importorskip("sklearn", reason='needs pip install ".[examples]"')
    vae = module("discrete_vae")
    sites, size = (3, 2) if latent == "bits" else (2, 3)
    monkeypatch.setitem(vae.LATENTS, latent, (sites, size))
    pixels = vae.digits()[1][:40]
    model = vae.make(latent, "disarm", 0).model
    logits = keras.Model(model.input, model.get_layer("logits").output)(pixels).numpy()
    if latent == "bits":
        logits = np.stack([0 * logits, logits], axis=-1)
    probs = scipy.special.softmax(logits.reshape(-1, sites, size), axis=-1)
    expected = np.zeros(len(pixels))
    for code in itertools.product(range(size), repeat=sites):
        q = np.prod([probs[:, site, i] for site, i in enumerate(code)], axis=0)
        code = np.array(code) if latent == "bits" else np.eye(size)[list(code)].ravel()
        hidden = code[None].astype("float32")
        for layer in model.layers[-2:]:
            hidden = layer(hidden)
        bits = scipy.stats.bernoulli(scipy.special.expit(hidden.numpy().astype(float)))
        log_p = bits.logpmf(pixels).sum(axis=1)
        expected += q * (np.log(q) + sites * np.log(size) - log_p)
    found = [vae.negative_bound(model, latent, pixels, 20) for _ in range(5)]
    error = np.std(found, ddof=1) / 5**0.5
    assert abs(np.mean(found) - expected.mean()) < 5 * error < 0.1


def test_discrete_vae_reports_its_training(module, monkeypatch, tmp_path):
    pytest.importorskip("sklearn", reason='needs pip install ".[examples]"')
    vae = module("discrete_vae")
    monkeypatch.setattr(vae, "RESULTS", tmp_path / "results.jsonl")
    vae.append(vae.run("bits", "leave_one_out", 0, epochs=2))
    vae.variances("bits", ["score_function", "leave_one_out_4", "disarm"], (0, 1), 20)
    lines = map(json.loads, vae.RESULTS.read_text().splitlines())
    row, *variances = lines
    # The bound of the weights at the end is below the mean of the first epoch.
    assert row["test"] < row["curve"][0] < 50 and row["ms_per_step"] > 0
    found = {(x["epoch"], x["variance"]): x["value"] for x in variances}
    for epoch in (0, 1):
        of = {name: found[epoch, name] for name in vae.METHODS if (epoch, name) in found}
        assert 10 * of["leave_one_out_4"] < of["score_function"], of
        assert 10 * of["disarm"] < of["score_function"], of


def test_page_on_estimators_shows_the_stored_results(module):
    pytest.importorskip("sklearn", reason='needs pip install ".[examples]"')
    text = (ROOT / "docs" / "estimator_choice.md").read_text()
    assert module("estimator_pictures").table() in text
