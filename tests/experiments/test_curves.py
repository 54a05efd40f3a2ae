"""Tests that learning curves are read from run directories as they were logged."""

import json

import keras
import numpy as np
import pytest

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.callbacks import run_files
from tf_reinforce.experiments import curves
from tf_reinforce.support import version


def write_run(folder, rows, header="epoch,env_steps,episodes,episode_return", **config):
    """Writes a run directory with a log, and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


ROWS = [(0, 10, 2, 5.0), (1, 30, 2, 7.0), (2, 60, 4, 9.0)]


def test_run_of_one_seed(tmp_path):
    header = "epoch,env_steps,episodes,episode_return,steps_per_second"
    rows = [(0, 10, 2, 5.0, 5.0), (1, 30, 2, 7.0, 10.0), (2, 60, 4, 9.0, 30.0)]
    folder = write_run(tmp_path / "first", rows, header, env="Pendulum-v1", seed=7)
    run = curves.read(folder)
    assert (run.name, run.env, run.evaluations) == ("first", "Pendulum-v1", [])
    [curve] = run.curves
    assert curve.seed == 7
    assert curve.column("episode_return").tolist() == [5, 7, 9]
    assert curve.x("updates").tolist() == [1, 2, 3]
    assert curve.x("steps").tolist() == [10, 30, 60]
    assert curve.x("episodes").tolist() == [2, 4, 8]
    assert curve.x("seconds").tolist() == [2, 4, 5]


def test_log_with_a_column_of_seeds_has_a_curve_for_each_seed(tmp_path):
    header = "epoch,seed,env_steps,episode_return"
    rows = [(0, 3, 10, 1.0), (0, 4, 12, 2.0), (1, 3, 20, 3.0), (1, 4, 24, "nan")]
    folder = write_run(tmp_path, rows, header)
    (folder / "evaluation.json").write_text(
        json.dumps({"3": {"episode_return": 1.5}, "4": {"episode_return": 2.5}})
    )
    run = curves.read(folder)
    assert [curve.seed for curve in run.curves] == [3, 4]
    np.testing.assert_array_equal(run.curves[1].column("episode_return"), [2, np.nan])
    assert run.evaluations == [1.5, 2.5]
    with pytest.raises(ValueError, match="no column .steps_per_second"):
        run.curves[0].x("seconds")


def test_log_key_may_contain_commas_and_quotes(tmp_path):
    path, keys = tmp_path / "log.csv", ["late, orders", 'the "cost"']
    logger = run_files.RunLog(path, tuple(keys))
    logger.set_model(keras.Model())
    logger.on_train_begin()
    logger.on_epoch_end(0, dict(zip(keys, (1.0, 2.0))))
    logger.on_train_end()
    (curve,) = curves.read(tmp_path).curves
    assert [curve.column(key).tolist() for key in keys] == [[1.0], [2.0]]


def test_folder_of_run_directories_is_a_run_of_several_seeds(tmp_path):
    for seed in (1, 0):
        folder = write_run(tmp_path / f"seed{seed}", ROWS, env="Taxi-v4", seed=seed)
        metrics = {"episode_return": float(seed), "episodes": 100}
        (folder / "evaluation.json").write_text(json.dumps(metrics))
    run = curves.read(tmp_path)
    assert [curve.seed for curve in run.curves] == [0, 1]
    assert run.evaluations == [0.0, 1.0]


def test_last_row_that_is_being_written_is_left_out(tmp_path):
    folder = write_run(tmp_path, ROWS)
    with open(folder / "log.csv", "a") as file:
        file.write("3,90,")
    assert len(curves.read(folder).curves[0].columns["epoch"]) == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("log.csv", "epoch,loss\n0,1\n1,two\n", "no table of numbers: .*'two'"),
        ("log.csv", "a,b\n1,2\n", "must have a column `epoch`"),
        ("log.csv", "epoch,loss\n", "at least one row"),
        ("log.csv", "", "must have a column `epoch`"),
        ("log.csv", "epoch,seed\n0,inf\n", "no table of numbers"),
        ("log.csv", f"epoch,{'x' * 2**18}\n0,1\n", "no table of numbers"),
        ("evaluation.json", '{"3": 4}', "no evaluation of a run"),
        ("evaluation.json", "[" * 100_000, "no JSON file"),
        ("evaluation.json", " " * (2**20 + 1), "at most 1048576 bytes"),
        ("config.json", "[1]", "must contain a JSON object"),
    ],
)
def test_damaged_files_are_named(name, content, message, tmp_path):
    write_run(tmp_path, ROWS)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name}.*{message}"):
        curves.read(tmp_path)


def test_missing_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing contains no log.csv"):
        curves.read(tmp_path / "nothing")


def test_smooth_equals_a_loop_over_windows():
    values = np.array([1.0, np.nan, 4.0, 7.0, np.inf, 2.0])
    for window in range(1, 8):
        expected = []
        for end in range(len(values)):
            part = values[max(0, end - window + 1) : end + 1]
            part = part[np.isfinite(part)]
            expected.append(part.mean() if len(part) else np.nan)
        np.testing.assert_allclose(curves.smooth(values, window), expected, rtol=1e-15)


def test_common_grid_covers_what_all_seeds_have():
    first = {"env_steps": np.array([10.0, 20, 40]), "a": np.arange(3.0)}
    second = {"env_steps": np.array([20.0, 60]), "a": np.array([4.0, 8])}
    pair = [curves.Curve("", None, columns) for columns in (first, second)]
    grid, values = curves.on_common_grid(pair, "a", "steps", points=3)
    assert grid.tolist() == [20, 30, 40]
    assert values.tolist() == [[1.0, 1.5, 2.0], [4.0, 5.0, 6.0]]
    for columns in (first, second):
        columns["a"][:] = np.nan
    with pytest.raises(ValueError, match="'a' has no finite value"):
        curves.on_common_grid(pair, "a", "steps")


def test_runs_with_other_settings_are_not_seeds_of_one_run(tmp_path):
    """`num_envs` may differ, because it does not change results."""
    for seed, num_envs in enumerate((4, 8)):
        fit = {"epochs": 3, "num_envs": num_envs}
        write_run(tmp_path / f"seed{seed}", ROWS, agent={"gamma": 0.9}, fit=fit)
    assert len(curves.read(tmp_path).curves) == 2
    write_run(tmp_path / "other", ROWS, agent={"gamma": 0.8}, fit={"epochs": 3})
    with pytest.raises(ValueError, match=r"environment and settings.*/\*\."):
        curves.read(tmp_path)


CONFIG = {"env": "\x1b]0;title\x07", "seed": 3, "agent": {"gamma": 0.9}}
CONFIG["fit"] = {"epochs": 2}


@pytest.fixture
def run(tmp_path):
    header = "epoch,env_steps,episode_return,val_episode_return"
    rows = [(0, 10, 1.5, 7), (1, 30, 2.5, "nan")]
    return write_run(tmp_path / "run", rows, header, **CONFIG)


def test_run_has_settings_last_numbers_of_the_log_and_evaluation(run, capsys):
    settings = {**CONFIG, "format_version": version.FORMAT}  # of the migrated file
    expected = {"settings": settings, "log": {"epoch": 1.0, "env_steps": 30.0}}
    expected["log"] |= {"episode_return": 2.5, "val_episode_return": 7.0}
    assert curves.info(run) == expected
    (run / "evaluation.json").write_text('{"episode_return": 40.5}')
    expected["evaluation"] = {"episode_return": 40.5}
    assert cli.main(["info", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected
    assert cli.main(["info", str(run)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out  # control characters of a stranger's file
    lines = [line.split() for line in out.splitlines()]
    assert ["settings.agent.gamma", "0.9"] in lines and ["log.env_steps", "30"] in lines
    assert lines[-1] == ["evaluation.episode_return", "40.5"]


def test_agent_file_has_settings(tmp_path, capsys):
    agent = tfr.Reinforce.for_env("Pendulum-v1", hidden=(4,), baseline="time_step")
    agent.save(tmp_path / "agent.keras")
    settings = curves.info(tmp_path / "agent.keras")["settings"]
    assert settings["head"] == "Gaussian" and settings["baseline"] == "TimeStep"
    assert settings["action_space"]["kind"] == "Box" and settings["gamma"] == 0.99
    assert cli.main(["info", str(tmp_path / "agent.keras")]) == 0
    assert "action_space.kind" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["folders", "one program"])
def test_each_seed_has_a_last_row_and_an_evaluation(kind, run, capsys):
    rows = [(0, 4, 10, 1.5), (0, 5, 20, 2.5)]
    header = "epoch,seed,env_steps,episode_return"
    write_run(run, rows, header)
    evaluation = {"4": {"episode_return": 0.5}, "5": {"episode_return": 1.0}}
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    if kind == "folders":
        for epoch, seed, *row in rows:
            folder = run.parent / "group" / f"seed_{seed}"
            header = "epoch,env_steps,episode_return"
            write_run(folder, [(epoch, *row)], header, **CONFIG)
            (folder / "evaluation.json").write_text(json.dumps(evaluation[str(seed)]))
        run = run.parent / "group"
    facts = curves.info(run)
    assert [facts["log"][seed]["episode_return"] for seed in "45"] == [1.5, 2.5]
    assert facts["evaluation"] == evaluation
    assert facts["settings"]["agent"] == {"gamma": 0.9}
    assert cli.main(["info", str(run)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["log.5.episode_return", "2.5"] in lines
