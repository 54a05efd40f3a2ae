"""Tests the ablation benchmark: its variants, its statistics and its report."""

import importlib
import json
import math
import pathlib

import numpy as np
import pytest

from tf_reinforce import presets
from tf_reinforce.settings import toml_files

ROOT = pathlib.Path(__file__).parents[2]
# The settings of a preset for long episodes, with an environment that needs no extra.
LONG = {
    **toml_files.EMPTY_PRESET,
    "env": "Pendulum-v1",
    "agent": {
        "head": "ClippedGaussian",
        "gae_lambda": 0.97,
        "scale_rewards": True,
        "scale_advantages": "batch",
        "mean_over": "steps",
        "minibatch_size": 256,
        "baseline": {"kind": "value", "passes": 2, "minibatch_size": 256},
    },
    "fit": {"steps_per_epoch": 900, "num_envs": 4},
}
SETTINGS = [presets.read("CartPole-v1"), presets.read("Pendulum-v1-one-pass"), LONG]


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    names = ("ablation", "ablation_gradients", "ablation_report", "learning_report")
    return [importlib.import_module(name) for name in names]


@pytest.fixture
def ablation(modules):
    return modules[0]


@pytest.fixture
def gradients(modules):
    return modules[1]


@pytest.fixture
def report(modules):
    return modules[2]


def record(preset, seed, means, final):
    return {
        "preset": preset,
        "seed": seed,
        "steps": 100,
        "every": 50,
        "settings": {},
        "finished": True,
        "curve": [[50 * at, mean, 0.0, 1.0] for at, mean in enumerate(means)],
        "final": {"episode_return": final},
        "training_seconds": 60.0,
        "evaluation_seconds": 30.0,
        "versions": {"python": "3.11"},
    }


def test_variant_changes_only_the_options_in_its_name(ablation):
    for settings in SETTINGS:
        found = ablation.variants(settings)
        assert found["preset"] is settings
        own = {**ablation.DEFAULTS, **settings["agent"]}
        for name, chosen in list(found.items())[1:]:
            fit = settings["fit"]
            changed = {k for k, v in chosen["agent"].items() if own[k] != v}
            changed |= {k for k, v in chosen["fit"].items() if fit.get(k) != v}
            named = {part.split("=")[0] for part in name.split(", ")}
            if "scale of values" in named:
                named = named - {"scale of values"} | {"baseline"}
            assert changed == named, name
            assert ablation.ablation_report.label(name) in ablation.LABELS


def test_variants_cover_every_option_except_the_presets_own(ablation):
    """Variants with another λ exist only if the preset has a value baseline."""
    for settings, without in zip(SETTINGS, (1, 0, 0)):
        names = [ablation.ablation_report.label(n) for n in ablation.variants(settings)]
        left = [label for label in ablation.LABELS if label not in names]
        options = [label.split("=")[0] for label in left]
        assert len(set(options)) == len(ablation.OPTIONS)
        assert len(options) == len(ablation.OPTIONS) + without * 4


@pytest.mark.slow
def test_every_variant_builds_an_agent(ablation):
    for settings in SETTINGS:
        for name, chosen in ablation.variants(settings).items():
            agent = ablation.make_agent(chosen, seed=0)
            assert agent.built, name
            fit = chosen["fit"]
            if agent.baseline.reset_group_size > 1:
                assert "steps_per_epoch" not in fit
                assert fit["episodes_per_epoch"] % agent.baseline.reset_group_size == 0


def test_combinations_without_a_variant_raise(ablation):
    cartpole, _, long = SETTINGS
    assert not any("gae_lambda" in name for name in ablation.variants(cartpole))
    for settings, more in (
        (cartpole, {"gae_lambda": 0.9}),
        (long, {"baseline": "mean"}),
    ):
        chosen = {**settings, "agent": {**settings["agent"], **more}}
        with pytest.raises(ValueError, match="needs a value baseline"):
            ablation.make_agent(chosen, seed=0)
    name = "baseline=leave_one_out in groups of 4, gae_lambda=1, episodes_per_epoch=8"
    agent = ablation.make_agent(ablation.variants(long)[name], seed=0)
    with pytest.raises(ValueError, match="needs groups of 4 episodes"):
        agent.collect("Pendulum-v1", steps=900)  # five episodes of 200


def test_steps_to_a_threshold_are_those_of_the_first_evaluation_above(report):
    """The table has the returns of each seed and the first step with at least 5.

    steps      0   50  100   first of 5
    seed 0     1    5    2           50
    seed 1     1    4    6          100
    seed 2     9    0    0            0
    seed 3     1    2    3        never
    """
    curves = ([1, 5, 2], [1, 4, 6], [9, 0, 0], [1, 2, 3])
    runs = [record("preset", seed, means, 0.0) for seed, means in enumerate(curves)]
    firsts = report.steps_to(5, runs)
    assert firsts == [50, 100, 0, math.inf]
    assert report.format_steps(firsts[:3]) == "50"
    assert report.format_steps(firsts[1:]) == "100 (2 of 3)"
    assert report.format_steps([50, math.inf, math.inf]) == "- (1 of 3)"
    assert (
        report.format_steps([math.inf] * 2)
        == report.format_steps([math.inf] * 2, True)
        == "-"
    )
    assert report.format_steps([41_000, 52_499], brief=True) == "47k"


def test_relative_variance_equals_its_definition(gradients):
    """The value is Σ|g - ḡ|² / (K - 1), divided by an unbiased estimate of |E g|²."""
    samples = np.random.default_rng(0).normal([3.0, -1.0, 2.0], 0.5, (7, 3))
    mean = sum(samples) / 7
    trace = sum(sum((g - mean) ** 2) for g in samples) / 6
    square = sum(mean**2) - trace / 7
    ratio, error = gradients.relative_variance(samples)
    assert ratio == pytest.approx(trace / square)
    left = [gradients.relative_variance(np.delete(samples, k, 0))[0] for k in range(7)]
    assert error == pytest.approx(math.sqrt(6 / 7 * sum((left - np.mean(left)) ** 2)))
    again = gradients.relative_variance(-1e3 * samples)
    assert again == pytest.approx((ratio, error))


def test_relative_variance_estimates_a_known_value(gradients):
    """Each of 200 trials has 40 numbers with mean 3 and variance 4: the ratio is 4/9."""
    samples = np.random.default_rng(0).normal(3.0, 2.0, (200, 32, 40))
    found = [gradients.relative_variance(trial) for trial in samples]
    ratios, errors = np.transpose(found)
    assert ratios.mean() == pytest.approx(4 / 9, abs=4 * ratios.std() / math.sqrt(200))
    assert errors.mean() == pytest.approx(ratios.std(), rel=0.2)


def test_relative_variance_is_a_lower_bound_if_the_mean_is_noise(gradients):
    """One of 100 numbers has mean 1 and the others have mean 0: the ratio is 100."""
    samples = np.random.default_rng(1).normal(0.0, 1.0, (32, 100))
    samples[:, 0] += 1.0
    least, error = gradients.relative_variance(0.5 * samples)
    assert error is None and 5 < least < 100
    samples[:, 0] -= 1.0
    assert gradients.relative_variance(samples)[1] is None


@pytest.mark.slow
def test_train_gives_all_agents_the_weights_of_the_first(ablation, gradients):
    """The other agents train their own critic, averages and scales."""
    agent = {"hidden": [4], "baseline": "value", "scale_advantages": "batch"}
    fit = {"episodes_per_epoch": 4}
    settings = {
        **toml_files.EMPTY_PRESET,
        "env": "CartPole-v1",
        "agent": agent,
        "fit": fit,
    }
    names = ("preset", "scale_advantages=running", "baseline=moving_average")
    chosen = {name: ablation.gradient_variants(settings)[name] for name in names}
    agents = {name: ablation.make_agent(found, 0) for name, found in chosen.items()}
    leader, running, average = agents.values()
    before = leader.policy_variables[0].numpy()
    gradients.train(agents, chosen, steps=3 * 200)
    assert leader.updates > 1
    assert not np.array_equal(leader.policy_variables[0], before)
    for agent in (running, average):
        assert agent.updates == leader.updates
        for mine, its in zip(agent.policy_variables, leader.policy_variables):
            np.testing.assert_array_equal(mine, its)
    for mine, its in zip(running.baseline.weights, leader.baseline.weights):
        np.testing.assert_array_equal(mine, its)
    shares = (1 - 0.9**leader.updates) / (1 - 0.9)
    assert average.baseline.shares.numpy() == pytest.approx(shares)
    batch = gradients.collect(leader, settings, seed=5)
    flat = [gradients.flatten(agent.gradients(batch)[0]) for agent in (leader, running)]
    first, second = (found / np.linalg.norm(found) for found in flat)
    np.testing.assert_allclose(first, second, atol=1e-5)


def test_ablation_report_is_written_between_its_marks(
    ablation, report, modules, tmp_path
):
    marks = modules[3]
    page = tmp_path / "ablation.md"
    page.write_text(f"before {marks.BEGIN} old {marks.END} after")
    made = (tmp_path / "results", tmp_path, ablation.TASKS, ablation.LABELS)
    assert "No run has finished yet." in report.write(*made)
    changed = "baseline=none, gae_lambda=1"
    for name, means, final in (("preset", [1, 500], 480.0), (changed, [1, 2], 20.0)):
        for seed in range(3):
            path = tmp_path / "results" / "CartPole-v1" / name / f"100_seed{seed}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record(name, seed, means, final + seed)))
    measured = {
        "relative_variance": {"preset": [3.0, 0.5], changed: [40.0, None]},
        "batches": 32,
        "env_steps": 33,
    }
    path.parent.with_name("100_gradients.json").write_text(json.dumps(measured))
    text = report.write(*made)
    assert page.read_text() == f"before {marks.BEGIN}\n\n{text}\n\n{marks.END} after"
    assert "| variant | seeds | steps to 475 |" in text
    assert "| preset | 3 | 50 | 481.0 ± 0.8 | 60.0 | 3.00 ± 0.50 |" in text
    assert f"| {changed} | 3 | - | 21.0 ± 0.8 | 60.0 | > 40.0 |" in text
    assert text.index("| preset") < text.index(f"| {changed}")
    assert "6 runs on one thread each, 0.1 hours in all, with python 3.11." in text
    assert 0 < (tmp_path / "ablation.png").stat().st_size < 150_000
