"""Tests the logs for Weights & Biases, which are written on this machine only."""

import math
import os
import subprocess
import sys

import pytest

from tf_reinforce.experiments import wandb_logger

wandb = pytest.importorskip("wandb", reason="needs wandb: make slow")
pytestmark = pytest.mark.slow


def program(*arguments):
    ran = subprocess.run(
        [sys.executable, "-m", "tf_reinforce", *map(str, arguments)],
        env={**os.environ, "WANDB_MODE": "offline"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_offline_run_is_written_to_the_run_directory_and_continues(tmp_path):
    run = tmp_path / "run"
    small = ["--epochs", "2", "--episodes-per-epoch", "2", "--eval-episodes", "2"]
    program("train", "CartPole-v1", *small, "--wandb", "project", "--run-dir", run)
    (identifier,) = (run / "wandb_id.txt").read_text().split()
    (folder,) = run.glob("wandb/offline-run-*")
    assert folder.name.endswith(identifier)
    (file,) = folder.glob("*.wandb")
    assert b"episode_return" in file.read_bytes()
    program("train", "--resume", run, "--wandb", "project")
    assert (run / "wandb_id.txt").read_text().split() == [identifier]


def test_name_of_a_stranger_in_the_id_file_is_replaced(tmp_path):
    path = tmp_path / "wandb_id.txt"
    path.write_text("../../etc\n")
    new = wandb_logger._run_id(path)
    assert new.isalnum() and path.read_text() == f"{new}\n"
    assert wandb_logger._run_id(path) == new


def test_rows_are_logged_over_environment_steps_without_nan(tmp_path, monkeypatch):
    rows, codes = [], []

    class Run:
        def log(self, row, step):
            rows.append((step, row))

        def finish(self, exit_code=0):
            codes.append(exit_code)

    options = {}
    monkeypatch.setattr(wandb, "init", lambda **given: options.update(given) or Run())
    logger = wandb_logger.WandbLogger("project", tmp_path, {"env": "Toy"})
    logger.on_train_begin()
    logger.on_epoch_end(0, {"env_steps": 7.0, "loss": math.nan, "entropy": 0.5})
    logger.on_train_error()
    assert rows == [(7, {"env_steps": 7.0, "entropy": 0.5})] and codes == [1]
    assert options["project"] == "project" and options["config"] == {"env": "Toy"}
    assert options["id"] == (tmp_path / "wandb_id.txt").read_text().strip()
