"""Tests the command line, from the arguments to the exit code."""

import contextlib
import copy
import dataclasses
import importlib.util
import io
import json
import logging
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import types
import warnings
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import toys

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce import envs
from tf_reinforce.callbacks import diagnostics
from tf_reinforce.cli import entry
from tf_reinforce.cli import options as cli_options
from tf_reinforce.cli import plans
from tf_reinforce.cli import train as train_command
from tf_reinforce.cli import tune
from tf_reinforce.engine import learner_processes
from tf_reinforce.experiments import runs
from tf_reinforce.experiments import search_space
from tf_reinforce.settings import config as package_config
from tf_reinforce.settings import run_config
from tf_reinforce.settings import toml_files
from tf_reinforce.support import version
from tf_reinforce.testing import export_report

ROOT = pathlib.Path(__file__).parent.parent
BASELINES = (*package_config.BASELINES, "value", "none")
FILES = {
    "config.json",
    "versions.json",
    "command.txt",
    "log.csv",
    "episodes.csv",
    "agent.keras",
    "last.keras",
    "checkpoints",
    ".lock",
    "evaluation.json",
}


@contextlib.contextmanager
def ascii_output():
    """Replaces standard output by a stream that raises an error for `·`, `±` or `█`."""
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True)
    with contextlib.redirect_stdout(stream):
        yield stream


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Trains for two updates; returns the run directory and the printed text."""
    path = tmp_path_factory.mktemp("runs") / "first {run}"
    with ascii_output() as printed:
        assert train(path) == 0
    return path, printed.buffer.getvalue().decode("ascii")


@pytest.fixture(scope="module")
def run(first):
    return first[0]


def train(path, *more, env="CartPole-v1"):
    small = ["--epochs", "2", "--episodes-per-epoch", "4", "--hidden", "8"]
    return cli.main(["train", env, "--run-dir", str(path), *small, *more])


def test_run_directory_contains_config_versions_logs_agent_and_evaluation(run):
    assert {path.name for path in run.iterdir()} == FILES
    config = json.loads((run / "config.json").read_text())
    assert config["env"] == "CartPole-v1"
    assert config["target_return"] == 475.0
    assert config["agent"]["gamma"] == 0.99
    assert json.loads((run / "versions.json").read_text())["keras"]
    assert len((run / "log.csv").read_text().splitlines()) == 1 + 2
    assert len((run / "episodes.csv").read_text().splitlines()) == 1 + 2 * 4
    words = shlex.split((run / "command.txt").read_text())  # as a shell splits them
    assert words[:5] == ["tf-reinforce", "train", "CartPole-v1", "--run-dir", str(run)]


def test_warnings_and_logs_of_a_command_are_one_line_each(monkeypatch, capsys):
    """A progress display replaces `sys.stderr`, to show lines above itself."""
    display = io.StringIO()

    def train(options, cluster):
        for _ in range(2):
            text = "old \x1benvironment"
            text = warnings.formatwarning(text, UserWarning, "env.py", 1)
            print(text, end="", file=sys.stderr)
        logging.getLogger("tf_reinforce").warning("finishing the update\x1b[2J")
        with contextlib.redirect_stderr(display):
            logging.getLogger("tf_reinforce").warning("above the display")
        return 0

    monkeypatch.setattr("tf_reinforce.cli.train._train", train)
    assert cli.main(["train", "CartPole-v1"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "tf-reinforce: warning: old ?environment",
        "tf-reinforce: finishing the update?[2J",
    ]
    assert display.getvalue() == "tf-reinforce: above the display\n"
    assert logging.getLogger("tf_reinforce").handlers == []


@pytest.mark.slow
def test_seeds_option_trains_many_seeds_and_keeps_the_best(tmp_path, capsys):
    """The seeds start at --seed. Each one is evaluated on the host environment."""
    assert train(tmp_path / "run", "--seeds", "3", "--seed", "4") == 0
    printed = capsys.readouterr().out
    assert "returns over new episodes: minimum " in printed
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == FILES - {"episodes.csv", "last.keras"}
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["seeds"] == [4, 5, 6]
    figures = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    log = (tmp_path / "run" / "log.csv").read_text().splitlines()
    assert log[0].startswith("epoch,seed,") and len(log) == 1 + 2 * 3
    best = max(figures, key=lambda seed: figures[seed]["episode_return"])
    assert f" (seed {best})" in printed
    assert cli.main(["evaluate", str(tmp_path / "run"), "--seed", best]) == 0
    assert json.loads(capsys.readouterr().out) == figures[best]


def plan(*words):
    return plans.make(entry.make_parser().parse_args(list(words)))


RATES = "{first = 0.02, last = 0}"
ENGINES = {
    "CartPole-v1": "CartPole",
    "FrozenLake8x8-v1": None,  # has no twin of its own
    "Blackjack-v1": None,  # has no time limit, which the compiled engine needs
    "Blackjack-v1 --max-episode-steps 9": "Blackjack",
    "Blackjack-v1 --engine compiled": "Blackjack",
    "CartPole-v1 --engine host": None,
    "CartPole-v1 --steps-per-epoch 50": None,
    "CartPole-v1 --on-bad-env drop_episode": None,
    "CartPole-v1 --on-env-error restart": None,
    "CartPole-v1 --env-arg sutton_barto_reward=true": None,
    "CartPole-v1 --workers 2": None,
    "CartPole-v1 --ray auto --workers 2": None,
    "CartPole-v1 --seeds 2 --epochs 3 --workers 2": None,
}


@pytest.mark.parametrize("words", ENGINES)
def test_training_uses_the_compiled_twin_unless_an_option_prevents_it(words):
    twin = plan("train", *words.split(), "--no-preset").twin()
    assert (None if twin is None else type(twin).__name__) == ENGINES[words]


@pytest.mark.parametrize(
    "words, expected",
    [
        ([], True),
        (["--baseline", "{kind = 'value'}"], True),
        (["--engine", "host"], False),
        (["--learning-rate", RATES], False),
        (["--baseline", f"{{kind = 'value', learning_rate = {RATES}}}"], False),
        (["--baseline", "value"], False),
        (["--diagnose"], False),
        (["--ray", "auto", "--workers", "2"], False),
        (["--env-arg", "sutton_barto_reward=true"], False),
        (["--on-bad-env", "drop_episode"], False),
    ],
)
def test_one_program_trains_all_seeds_unless_an_option_needs_processes(words, expected):
    """Linear learning rates are set by a callback, and one program has no callbacks."""
    found = plan("train", "CartPole-v1", "--seeds", "2", "--epochs", "3", *words)
    assert found.in_one_program is expected and list(found.seeds) == [0, 1]


def test_search_uses_a_twin_unless_the_number_of_steps_has_a_range():
    table = {"low": 4, "high": 64}
    for name, expected in ("episodes_per_epoch", True), ("steps_per_epoch", False):
        ranges = search_space.parse({"fit": {name: table}})
        varied = tune.varied(plan("tune", "FrozenLake-v1"), ranges)
        assert (varied.twin() is not None) == expected
    with pytest.raises(ValueError, match="Received: {'steps_per_epoch': 'a range'}"):
        tune.varied(plan("tune", "FrozenLake-v1", "--engine", "compiled"), ranges)


def test_twin_of_returns_none_if_the_registered_spec_differs(monkeypatch):
    assert envs.twin_of("CartPole-v0") is None and envs.twin_of("Nope-v0") is None
    for change in (
        {"max_episode_steps": 10},
        {"reward_threshold": None},
        {"kwargs": {"sutton_barto_reward": True}},
        {"entry_point": "elsewhere:CartPole"},
    ):
        spec = copy.copy(gym.spec("CartPole-v1"))
        for name, value in change.items():
            setattr(spec, name, value)
        monkeypatch.setitem(gym.registry, "CartPole-v1", spec)
        assert envs.twin_of("CartPole-v1") is None


@pytest.mark.slow
def test_twin_is_used_with_action_masks(tmp_path):
    """The evaluation on Gymnasium's environment reads the mask from `info`."""
    mask = "--action-mask", "info/action_mask", "--max-episode-steps", "5"
    assert train(tmp_path / "run", *mask, env="Taxi-v4") == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["engine"] == "compiled"


def test_evaluate_prints_the_same_result_as_the_run(run, capsys):
    assert cli.main(["evaluate", str(run), "--episodes", "100"]) == 0
    shown = json.loads(capsys.readouterr().out)
    stored = json.loads((run / "evaluation.json").read_text())
    assert {**shown, "updates": 2} == stored
    with pytest.warns(UserWarning, match="no episode ended with info.'cost'."):
        cli.main(["evaluate", str(run), "--episodes", "1", "--info-keys", "cost"])
    assert math.isnan(json.loads(capsys.readouterr().out)["cost"])


def test_evaluate_trusts_neither_modules_nor_texts_of_a_run(run, tmp_path, capsys):
    """Otherwise a config.json with `module:Id` could execute the code of a stranger, and
    a string could be the path of any file of the user.
    """
    file = str(run / "agent.keras")
    assert cli.main(["evaluate", file, "--env", "CartPole-v1", "--episodes", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 3
    assert cli.main(["evaluate", file]) == 2
    assert "only if you trust it: --env MODULE:ID" in capsys.readouterr().err
    (tmp_path / "agent.keras").write_bytes((run / "agent.keras").read_bytes())
    for config, words in (
        ({"env": "antigravity:CartPole-v1"}, "trust it: --env antigravity:CartPole-v1"),
        ({"env": "CartPole-v1", "env_kwargs": {"file": "/etc/passwd"}}, "finite numbers"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert cli.main(["evaluate", str(tmp_path)]) == 2
        assert words in capsys.readouterr().err
    assert "antigravity" not in sys.modules


def test_evaluate_uses_the_time_limit_of_the_user_or_of_the_evaluation(
    run, tmp_path, capsys
):
    """An episode of CartPole has more than six steps. Training has another limit."""
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "agent.keras").write_bytes((run / "agent.keras").read_bytes())
    config = {"env": "CartPole-v1", "fit": {"max_episode_steps": 2}}
    config["evaluation"] = {"max_episode_steps": 4}
    (copy / "config.json").write_text(json.dumps(config))
    limit = "--max-episode-steps"
    for more, length in (([], 4), ([limit, "3"], 3), ([limit, "6"], 6)):
        assert cli.main(["evaluate", str(copy), "--episodes", "5", *more]) == 0
        assert json.loads(capsys.readouterr().out)["episode_length"] == length


def test_evaluate_samples_actions_if_the_user_or_the_run_does(run, tmp_path, capsys):
    (tmp_path / "agent.keras").write_bytes((run / "agent.keras").read_bytes())
    config, results = {"env": "CartPole-v1", "evaluation": {"deterministic": False}}, []
    (tmp_path / "config.json").write_text(json.dumps(config))
    for folder in (tmp_path, run):
        for more in ([], ["--stochastic"], ["--no-stochastic"]):
            assert cli.main(["evaluate", str(folder), "--episodes", "9", *more]) == 0
            results.append(capsys.readouterr().out)
    sampled, greedy = results[1:3]
    assert results == [sampled, sampled, greedy, greedy, sampled, greedy]
    assert sampled != greedy


def test_folder_that_is_no_run_is_refused(tmp_path, capsys):
    assert cli.main(["evaluate", str(tmp_path)]) == 2
    assert "agent.keras. Expected: an agent file" in capsys.readouterr().err
    assert cli.main(["info", str(tmp_path / "run")]) == 2
    assert f"no file or folder {tmp_path}/run." in capsys.readouterr().err
    for seed in (2, 3):
        folder = tmp_path / "many" / f"seed_{seed}"
        folder.mkdir(parents=True)
        (folder / "agent.keras").write_text("")
        (folder / "config.json").write_text("{}")
    for words in (["record"], ["export", "--out", "x"]):
        assert cli.main([*words, str(tmp_path / "many")]) == 2
        expected = f"seeds. Expected: one of them, for example {tmp_path}/many/seed_2"
        assert expected in capsys.readouterr().err


def test_export_writes_a_saved_model(run, tmp_path, capsys):
    """The check needs the environment that the user names."""
    command = ["export", str(run), "--out", str(tmp_path / "policy")]
    assert cli.main(command) == 0
    assert (tmp_path / "policy" / "saved_model.pb").exists()
    assert cli.main([*command, "--check", "--env", "toys:NoSuch-v0"]) == 2
    printed = capsys.readouterr()
    assert "NoSuch" in printed.err and "random" not in printed.out


def test_export_checks_the_written_format_on_played_observations(
    run, tmp_path, monkeypatch, capsys
):
    """A difference is the exit code 1."""
    command = ["export", str(run), "--out", str(tmp_path / "new"), "--format", "onnx"]
    assert cli.main([*command, "--check", "--observations", "50"]) == 0
    printed = capsys.readouterr().out
    assert "act, sample, distribution\n" in printed and "50 played" in printed
    assert (tmp_path / "new" / "sample.onnx").exists()
    calls, report = [], types.SimpleNamespace(passed=False)
    note = lambda *_, **options: calls.append(options) or report  # noqa: E731
    monkeypatch.setattr(export_report, "check_export", note)
    assert cli.main([*command, "--check", "--env-arg", "sutton_barto_reward=true"]) == 1
    env_kwargs = {"sutton_barto_reward": True}
    assert calls == [{"observations": 1000, "env_kwargs": env_kwargs}]


def test_train_refuses_an_existing_run_directory(run, capsys):
    def contents():
        return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    before = contents()
    assert train(run) == 2
    message = capsys.readouterr().err
    assert "existing runs are not overwritten" in message and "--resume" in message
    assert contents() == before


def test_interrupt_before_there_is_a_run_directory_ends_the_command(monkeypatch, capsys):
    monkeypatch.setattr(runs, "new_directory", mock.Mock(side_effect=KeyboardInterrupt))
    assert cli.main(["train", "CartPole-v1", "--epochs", "1", "--no-preset"]) == 130
    assert capsys.readouterr().err == "tf-reinforce: interrupted\n"


def test_config_is_the_first_file_of_a_run(tmp_path, monkeypatch):
    """A run that is killed after its first file can be resumed."""
    written = []
    monkeypatch.setattr(
        run_config, "write_json", lambda path, content: written.append(path.name)
    )
    run_config.write(tmp_path, {}, "tf-reinforce train CartPole-v1")
    assert written == ["config.json", "versions.json"]
    text = (tmp_path / "command.txt").read_text()
    assert text == "tf-reinforce train CartPole-v1\n"


@pytest.mark.parametrize("cores", [0, 0.5])
def test_config_names_no_cluster_and_the_resume_command_does(cores, tmp_path):
    workers = tfr.collect.RayWorkers(3, "host:6379", num_cpus_per_worker=cores)
    fit = {"epochs": 1, "workers": workers}
    config = {"env": "CartPole-v1", "env_kwargs": {}, "fit": fit}
    run_config.write(tmp_path, config)
    assert run_config.read(tmp_path)["fit"] == {"epochs": 1}
    words = run_config.resume_words("run", config)
    options = entry.make_parser().parse_args(words)
    assert cli_options.explicit_settings(options)["fit"] == {"workers": workers}


def test_command_whose_output_nobody_reads_ends_without_a_message():
    """The text is written when the command has ended, as after `| head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tf_reinforce", "presets", "CartPole-v1"]
    variables = {k: x for k, x in os.environ.items() if k != "PYTHONUNBUFFERED"}
    process = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, env=variables, timeout=60
    )
    os.close(writer)
    assert (process.returncode, process.stderr) == (1, b"")


def test_options_of_a_resumed_run_replace_those_of_its_config(run, tmp_path):
    """A number of seconds replaces a number of updates."""
    path = shutil.copytree(run, tmp_path / "copy") / "config.json"
    content = json.loads(path.read_text())
    content["checkpoint"] = {"every_updates": 5, "grace_seconds": 9.0}
    content["target_return"] = 3.5
    content["callbacks"] = {"tensorboard": "scalars", "video": 7}
    path.write_text(json.dumps(content))
    own = plan("train", "--resume", str(path.parent))
    assert own.target == 3.5
    own = own.settings
    for name in ("checkpoint", "fit"):
        assert own[name] == content[name]
    assert own["callbacks"] == {"tensorboard": "scalars"}  # earlier versions had videos
    words = "--checkpoint-every 30s --grace 0 --diagnose --tensorboard histograms"
    words += " --num-envs 3 --workers 2"
    path.write_text(json.dumps({**content, "engine": "host"}))
    other = plan("train", "--resume", str(path.parent), *words.split()).settings
    every = {"every_seconds": 30.0, "every_updates": None}
    assert other["checkpoint"] == {**every, "grace_seconds": 0.0}
    kinds = {"diagnose": True, "tensorboard": "histograms"}
    assert other["callbacks"] == kinds
    assert other["fit"] == {**own["fit"], "num_envs": 3, "workers": 2}
    assert other["agent"] == content["agent"]


def test_limit_of_agent_files_is_an_option(run, capsys):
    arguments = ["evaluate", str(run), "--episodes", "1", "--max-bytes"]
    size = os.path.getsize(run / "agent.keras")
    assert cli.main([*arguments, str(size - 1)]) == 2
    assert f"or `--max-bytes {size}`." in capsys.readouterr().err
    assert cli.main([*arguments, str(size)]) == 0


# An environment whose steps fail with the probability `share`; each return is one.
LOCAL = """
import gymnasium as gym, numpy as np
class Local(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def __init__(self, share=0.0):
        self.share = share
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        if self.np_random.random() < self.share:
            raise RuntimeError("the simulator left")
        return np.zeros(2, np.float32), 1.0, True, False, {}
gym.register("Local-v3", Local)
"""


def test_environment_that_fails_exits_with_1(tmp_path, monkeypatch, capsys):
    (tmp_path / "fragile.py").write_text(LOCAL.replace("Local-v3", "Fragile-v0"))
    monkeypatch.syspath_prepend(tmp_path)
    env, always = "fragile:Fragile-v0", ["--env-arg", "share=1"]
    assert train(tmp_path / "run", *always, env=env) == 1
    assert "the simulator left" in capsys.readouterr().err
    command = ["check-env", env, "--episodes", "2", "--env-arg", "share=0.0"]
    assert cli.main([*command, *always]) == 1  # the last value counts
    said = "error: Environment 0, episode 0, step 0: step raised"
    assert said in capsys.readouterr().out
    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    assert "errors: 0, warnings: 0, notes: " in printed
    assert re.search(r"A typical step of the environment takes [\d,]+\.\d µs", printed)
    assert re.search(r"Take num_envs=\d+ and workers=\d+\.", printed)


@ascii_output()
def test_no_character_ends_a_command():
    [verbs] = entry.make_parser()._subparsers._group_actions
    for words in [[], *([verb] for verb in verbs.choices)]:
        with pytest.raises(SystemExit) as error:
            cli.main([*words, "--help"])
        assert error.value.code == 0


def test_no_character_ends_a_training(first):
    assert re.search(r"update 2/2 \? return .* \? entropy", first[1])
    assert re.search(r"mean return \S+ \? \S+ over 100 new episodes", first[1])


def test_help_does_not_import_tensorflow():
    code = (
        "import sys; from tf_reinforce import cli\n"
        "try: cli.main(['train', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True
    )


@pytest.mark.usefixtures("hears_ctrl_c")
def test_command_that_ctrl_c_ends_at_any_stage_can_be_repeated_or_continued(
    tmp_path, monkeypatch, capsys
):
    """The signals arrive after config.json is written, and in the last evaluation."""
    signals = iter([signal.SIGINT])
    run = tmp_path / "run"

    class Interrupted(toys.Bandit):
        def reset(self, **options):
            for number in signals if (run / "agent.keras").exists() else ():
                try:
                    signal.raise_signal(number)
                except KeyboardInterrupt:  # as TensorFlow does while it traces
                    raise TypeError("another error") from None
            return super().reset(**options)

    gym.register("InterruptedBandit-v0", Interrupted)
    arguments = ["train", "InterruptedBandit-v0", "--epochs", "1", "--hidden", "4"]
    arguments += ["--episodes-per-epoch", "4", "--num-envs", "1"]
    arguments += ["--run-dir", str(run), "--eval-episodes", "2"]
    with monkeypatch.context() as patch:
        interrupt = lambda: signal.raise_signal(signal.SIGINT)  # noqa: E731
        patch.setattr(version, "installed", interrupt)
        assert cli.main(arguments) == 130
    assert "tf-reinforce: interrupted\n" in capsys.readouterr().err
    assert not run.exists()
    assert cli.main(arguments) == 130
    printed = capsys.readouterr()
    assert f"interrupted after 1 update; saved in {run}" in printed.out
    assert f"to continue: tf-reinforce train --resume {run}" in printed.out
    assert "Traceback" not in printed.err and not (run / "evaluation.json").exists()
    assert cli.main(["train", "--resume", str(run)]) == 0
    assert "trained 1 update, " in capsys.readouterr().out


def test_console_script_and_module_are_the_same_program():
    """Nearly all objects belong to TensorFlow, and collecting them takes a second."""
    config = (ROOT / "setup.cfg").read_text()
    assert "tf-reinforce = tf_reinforce.__main__:main" in config
    code = (
        "import atexit, gc, runpy\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 0))\n"
        "runpy.run_module('tf_reinforce', run_name='__main__')"
    )
    ran = program("--version", code=code)
    assert ran.stdout.split() == [tfr.__version__, "True"], ran.stderr


def test_evaluations_of_a_run_use_its_settings():
    """On a cluster, they reserve no further cores."""
    fit = dict(num_envs=3, on_bad_env="drop_episode", on_env_error="restart")
    evaluated = {"episodes": 7, "deterministic": False, "max_episode_steps": 20}
    workers = tfr.collect.RayWorkers(3, "host:6379")
    settings = {"evaluation": evaluated, "env_kwargs": {"g": 5.0}}
    settings["fit"] = {**fit, "max_episode_steps": 50, "epochs": 4, "workers": workers}
    idle = dataclasses.replace(workers, num_cpus_per_worker=0)
    expected = {**fit, **evaluated, "env_kwargs": {"g": 5.0}, "workers": idle}
    expected["info_keys"] = ()
    assert runs.evaluation_options(settings) == expected


def test_each_setting_has_an_option_and_one_environment_is_made(monkeypatch):
    names = {
        name for table, name in cli_options.SETTINGS.values() if table != "evaluation"
    }
    tables = [package_config.TABLES[x] for x in ("agent", "fit", "callbacks")]
    expected = {name for table in tables for name in table} - {"stop_at_return"}
    assert names - {"grace_seconds"} == expected
    made, make = [], plans.action_space
    note = lambda *x: made.append(x) or make(*x)  # noqa: E731
    monkeypatch.setattr(plans, "action_space", note)
    words = ["train", "Pendulum-v1", "--preset", "--env-arg", "g=5", "--head", "Beta"]
    assert plan(*words).target == -200
    assert made == [("Pendulum-v1", {"g": 5})]


def test_options_become_the_settings_of_their_tables():
    arguments = ["--gamma", "0.9", "--steps", "9", "--target-return", "3"]
    arguments += ["--max-episode-steps", "7", "--no-normalize-observations", "--hidden"]
    options = entry.make_parser().parse_args(["train", "CartPole-v1", *arguments])
    assert cli_options.explicit_settings(options) == {
        "agent": {"gamma": 0.9, "hidden": [], "normalize_observations": False},
        "fit": {"steps": 9, "max_episode_steps": 7},
        "evaluation": {"target": 3.0, "max_episode_steps": 7},
        "checkpoint": {},
        "callbacks": {},
    }


def test_required_target_that_is_missed_gives_exit_code_1(tmp_path, monkeypatch, capsys):
    """Without a budget, a training ends when it reaches the target.

    A diagnosis that fails does not fail the training.
    """
    monkeypatch.setattr(diagnostics, "examine", None)
    few = ["--require-target", "--eval-episodes", "2", "--engine", "host"]
    assert train(tmp_path / "a", "--target-return", "500", *few) == 1
    printed = capsys.readouterr().out
    assert "target 500 missed" in printed and "training ends" not in printed
    assert "diagnosis:" not in printed and "use `--preset" not in printed
    words = ["--target-return", "0", "--eval-every", "1", *few]
    words += ["--hidden", "8", "--no-preset", "--run-dir", str(tmp_path / "b")]
    assert cli.main(["train", "CartPole-v1", *words]) == 0
    printed = capsys.readouterr().out
    assert "over 2 episodes reaches the target return 0, or after 300 upd" in printed
    assert "trained 1 update, " in printed and "target 0 reached" in printed
    assert train(tmp_path / "c", *few[:1], "--no-preset", env="Pendulum-v1") == 2
    assert "Pendulum-v1 has no reward threshold" in capsys.readouterr().err


@pytest.mark.slow
def test_info_keys_are_in_all_files_of_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gym.envs.registration, "registry", {})
    gym.register("Reporting-v0", toys.Reporting)
    words = ["--info-keys", "cost", "late", "--eval-episodes", "3"]
    assert train(tmp_path / "run", *words, env="Reporting-v0") == 0
    run = tmp_path / "run"
    config = json.loads((run / "config.json").read_text())
    assert config["fit"]["info_keys"] == ["cost", "late"]
    for name in ("log.csv", "episodes.csv"):
        header = (run / name).read_text().splitlines()[0].split(",")
        assert {"cost", "late"} <= {*header}
    metrics = json.loads((run / "evaluation.json").read_text())
    assert metrics["cost"] == pytest.approx(metrics["episode_length"] / 7)
    assert cli.main(["plot", str(run), "--key", "cost", "--key", "late"]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", str(run), "--info-keys", "cost"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["cost"] == pytest.approx(metrics["episode_length"] / 7)
    assert cli.main(["train", "--resume", str(run), "--info-keys", "cost"]) == 2
    assert "has another `info_keys`" in capsys.readouterr().err


@pytest.mark.slow
def test_training_writes_events(tmp_path, capsys):
    more = ["--tensorboard", "histograms", "--diagnose"]
    assert train(tmp_path / "run", *more) == 0
    assert "Diagnostics: " in capsys.readouterr().out
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    expected = {"diagnose": True, "tensorboard": "histograms"}
    assert config["callbacks"] == expected
    assert cli.main(["plot", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_presets_are_listed_with_documented_results(capsys):
    """Each result is a cell of the tables in docs/presets.md or docs/results.md."""
    assert cli.main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    pages = [(ROOT / "docs" / name).read_text() for name in ("presets.md", "results.md")]
    rows = [line.split("|") for page in pages for line in page.splitlines()]
    assert max(map(len, lines)) <= 80
    for name in toml_files.names():
        result = toml_files.read(name)["result"]
        value, steps = result.split(" after ")
        (line,) = [x for x in lines if x.startswith(f"{name} ")]
        thousands = f"{steps.split(' ')[0][:-4]}k"
        assert line.split(None, 2)[1:] == [thousands, value.partition(" (")[0]]
        cells = [[x.strip(" `") for x in row] for row in rows]
        assert any(name in row and value in row for row in cells), name


def test_preset_is_printed_as_a_preset_file(tmp_path, capsys):
    assert cli.main(["presets", "Taxi-v4"]) == 0
    (tmp_path / "mine.toml").write_text(capsys.readouterr().out)
    assert toml_files.read(str(tmp_path / "mine.toml")) == toml_files.read("Taxi-v4")
    assert cli.main(["presets", "NoSuch"]) == 2
    assert "no preset 'NoSuch'" in capsys.readouterr().err


def test_completion_script_completes_commands(tmp_path, capsys):
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "complete.sh"
    script.write_text(capsys.readouterr().out)
    code = f"""source {script}
    COMP_WORDS=(tf-reinforce ev) COMP_CWORD=1
    _shtab_tf_reinforce; echo "${{COMPREPLY[@]}}"
    """
    words = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
    assert words.stdout.split() == ["evaluate"], words.stderr


@pytest.mark.parametrize(
    "words, printed",
    [
        ("tain CartPole-v1", "tf-reinforce: error: .*'tain'.*train.* -h"),
        ("train --engine hots", "invalid choice: 'hots'.*host.* tf-reinforce train"),
        ("train E --zzz 0", "--zzz 0. Help: tf-reinforce train -h"),
        ("train E --zzz \x1b[2J", "--zzz ?.2J. Help: tf-reinforce train -h"),
        ("export run", "are required: --out. Help: tf-reinforce export -h"),
        ("", "tf-reinforce: error: .*required: COMMAND. Help: tf-reinforce -h"),
        ("train E --env-arg 3", "must have the form NAME=VALUE"),
    ],
)
def test_error_of_the_parser_is_one_line_with_a_hint(words, printed, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(words.split())
    assert error.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(printed.replace("?", r"\?"), line)


def test_module_in_the_current_folder_is_imported(tmp_path, monkeypatch, capsys):
    """A file that is named like an installed module does not replace the module.

    The return of each episode is one.
    """
    (tmp_path / "local_task.py").write_text(LOCAL)
    (tmp_path / "antigravity.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", os.curdir)])
    target = ["--require-target", "--target-return", "1"]
    assert train("run", *target, env="local_task:Local-v3") == 0
    assert "target 1 reached" in capsys.readouterr().out
    origin = importlib.util.find_spec("antigravity").origin
    assert origin != str(tmp_path / "antigravity.py")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["env"] == "local_task:Local-v3"
    command = ["evaluate", "run", "--env", "local_task:Local-v3", "--episodes", "1"]
    assert cli.main(command) == 0


def test_error_for_a_missing_module_names_it_and_the_folder(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half_task.py").write_text("import module_that_it_needs")
    (tmp_path / "ending_task.py").write_text("import sys\nsys.exit()")
    for env, text in {
        "Boat-v0": "MODULE:ID if a module registers it. Received: Boat-v0",
        "CartPole": "an environment id with its version",
        "nosuchtask:Grid-v0": f"no module 'nosuchtask' in the current folder, {tmp_path}",
        "no.such:Grid-v0": "no module 'no.such' in the current folder",
        "half_task:Grid-v0": "No module named 'module_that_it_needs'",
        "ending_task:Grid-v0": "The module ending_task fails: SystemExit:  (",
    }.items():
        assert train("run", env=env) == 2
        assert text in capsys.readouterr().err


def program(*arguments, code=None, **variables):
    """Runs the command line, or code, in a process without a TensorFlow log level."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    if "TF_CPP_MIN_LOG_LEVEL" not in variables:
        environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    command = ["-m", "tf_reinforce"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *command, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
    )


@pytest.mark.slow
def test_commands_print_no_startup_messages(tmp_path):
    path = tmp_path / "run"
    small = ["--epochs", "1", "--hidden", "8", "--engine", "host"]
    for command in (
        ["train", "CartPole-v1", *small, "--run-dir", path],
        ["evaluate", path, "--episodes", "2"],
        ["export", path, "--out", tmp_path / "policy"],
        ["explain", "--probs", "1", "2", "--action", "0"],
    ):
        ran = program(*command)
        assert (ran.returncode, ran.stderr) == (0, ""), command
        assert "I0000" not in ran.stdout and "XNNPACK" not in ran.stdout


MESSAGES = """
import os, sys, warnings
from tf_reinforce.support import startup
with startup.without_messages():
    os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called\\n")
    os.write(2, b"I0000 00:00:1.2 3 port.cc:153] oneDNN custom operations are on.\\n")
    os.write(2, b"E0000 00:00:1.2 3 a.cc:5] failed call to cuInit: ERROR (303)\\n")
    os.write(2, b"E0000 00:00:1.2 3 a.cc:5] failed call to cuInit: OUT_OF_MEMORY (2)\\n")
    os.write(2, b"F0000 00:00:1.2 3 b.cc:7] needs AVX\\n")
    print("in Python", file=sys.stderr)
    END
"""


@pytest.mark.parametrize("end", ["pass", "raise ValueError('here')"])
def test_errors_at_startup_are_printed_even_if_an_error_is_raised(end):
    ran = program(code=MESSAGES.replace("END", end))
    lines = ran.stderr.splitlines()
    assert [line.split("]")[-1].strip() for line in lines[:3]] == [
        "failed call to cuInit: OUT_OF_MEMORY (2)",
        "needs AVX",
        "in Python",
    ]
    assert (ran.returncode == 0) == (end == "pass")
    assert ("ValueError: here" in ran.stderr) == ("ValueError" in end)


def tf_config(index, ports=(1, 2)):
    workers = [f"127.0.0.1:{port}" for port in ports]
    task = {"type": "worker", "index": index}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


def test_learner_processes_with_invalid_options_are_refused(monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", tf_config(0))
    command = ["train", "CartPole-v1", "--epochs", "1", "--seeds", "2"]
    assert cli.main(command) == 2
    assert "--seeds 2, and 2 learner processes in TF_CONFIG" in capsys.readouterr().err
    monkeypatch.setenv("TF_CONFIG", "{")
    assert cli.main(command) == 2
    assert "Received: TF_CONFIG='{'" in capsys.readouterr().err


def test_lost_learner_process_gives_one_line_and_exit_code_1(monkeypatch, capsys):
    def lose(options):
        raise learner_processes.LearnerLost("Process 1 has ended.")

    monkeypatch.setattr(train_command, "_train", lambda options, cluster: lose(options))
    assert cli.main(["train", "CartPole-v1"]) == 1
    assert capsys.readouterr().err == "tf-reinforce: Process 1 has ended.\n"


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.mark.slow
def test_learner_processes_train_the_agent_of_one_process(tmp_path):
    """A run of two processes is extended from five to ten updates.

    The learning rate is constant: a linear one would depend on the number of updates.
    """
    options = ["--baseline", "value", "--engine", "host", "--learning-rate", "0.001"]
    assert train(tmp_path / "one", *options, "--epochs", "10") == 0

    def run_two(*words):
        """Runs `tf-reinforce train` in two processes; returns their outputs."""
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        command, ports = [sys.executable, "-m", "tf_reinforce", "train"], free_ports(2)
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        processes = [
            subprocess.Popen(
                [*command, *words],
                cwd=tmp_path,
                env={**environ, "TF_CONFIG": tf_config(index, ports)},
                **pipes,
            )
            for index in range(2)
        ]
        outputs = [process.communicate() for process in processes]
        assert not any(x.returncode for x in processes), outputs
        return [output for output, _ in outputs]

    few = ["--episodes-per-epoch", "4", "--hidden", "8", "--epochs", "5"]
    first, second = run_two("CartPole-v1", *few, *options, "--run-dir", "two")
    assert "training with 2 learner processes" in first and second == ""
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}
    assert {path.name for path in (tmp_path / "two").iterdir()} == FILES
    path = tmp_path / "two" / "config.json"
    path.write_text(path.read_text().replace('"epochs": 5', '"epochs": 10'))
    run_two("--resume", "two")
    assert len((tmp_path / "two" / "log.csv").read_text().splitlines()) == 1 + 10
    agents = [tfr.load(tmp_path / name / "last.keras") for name in ("one", "two")]
    for expected, received in zip(*(x.get_weights() for x in agents), strict=True):
        norm = np.linalg.norm(expected)
        assert np.linalg.norm(received - expected) <= 1e-6 * norm
