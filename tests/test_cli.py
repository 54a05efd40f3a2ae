"""The command line, from request to exit code."""

import contextlib
import copy
import io
import json
import os
import pathlib
import signal
import subprocess
import sys

import gymnasium as gym
import pytest
import sweeps
import toys

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce import envs
from tf_reinforce.callbacks import evaluation
from tf_reinforce.experiments import runs

ROOT = pathlib.Path(__file__).parent.parent
FILES = {
    "config.json",
    "versions.json",
    "log.csv",
    "episodes.csv",
    "agent.keras",
    "evaluation.json",
}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A run directory, trained for two updates, and what was printed meanwhile."""
    path = tmp_path_factory.mktemp("runs") / "first"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert train(path) == 0
    return path, printed.getvalue()


@pytest.fixture(scope="module")
def run(first):
    return first[0]


def train(path, *more, env="CartPole-v1"):
    small = ["--epochs", "2", "--episodes-per-epoch", "4", "--hidden", "8"]
    return cli.main(["train", env, "--run-dir", str(path), *small, *more])


def test_a_run_directory_holds_all_there_is_to_know(run):
    assert {path.name for path in run.iterdir()} == FILES
    config = json.loads((run / "config.json").read_text())
    assert config["env"] == "CartPole-v1"
    assert config["target_return"] == 475.0
    assert config["agent"]["gamma"] == 0.99
    assert json.loads((run / "versions.json").read_text())["keras"]
    assert len((run / "log.csv").read_text().splitlines()) == 1 + 2
    assert len((run / "episodes.csv").read_text().splitlines()) == 1 + 2 * 4


def test_a_twin_is_trained_on_where_it_is_the_same(first, tmp_path, capsys):
    """In one line; and the agent is evaluated on the environment itself."""
    run, printed = first
    said = "training on tf_reinforce.envs.CartPole, the compiled twin of CartPole-v1"
    config = json.loads((run / "config.json").read_text())
    assert config["engine"] == "compiled" and config["env"] == "CartPole-v1"
    assert printed.count(said) == 1
    ways = {
        "host": (["--engine", "host"], "host"),
        "by steps": (["--steps-per-epoch", "50"], "host"),
        "forced": (["--engine", "compiled"], "compiled"),
    }
    for name, (more, engine) in ways.items():
        small = ["--epochs", "1", "--hidden", "8", "--run-dir", str(tmp_path / name)]
        assert cli.main(["train", "CartPole-v1", *small, *more]) == 0
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["engine"] == engine
        assert said not in capsys.readouterr().out


def test_many_seeds_are_trained_at_once(tmp_path, capsys):
    """From --seed on; each is evaluated on the environment itself, the best is kept."""
    more = ["--seeds", "3", "--seed", "4"]
    assert train(tmp_path / "run", *more) == 0
    printed = capsys.readouterr().out
    assert "3 seeds" in printed and "exported" not in printed
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES - {
        "episodes.csv"
    }
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["seeds"] == [4, 5, 6]
    figures = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert set(figures) == {"4", "5", "6"}
    log = (tmp_path / "run" / "log.csv").read_text().splitlines()
    assert log[0].startswith("epoch,seed,") and len(log) == 1 + 2 * 3
    best = max(figures, key=lambda seed: figures[seed]["episode_return"])
    assert cli.main(["evaluate", str(tmp_path / "run"), "--seed", best]) == 0
    assert json.loads(capsys.readouterr().out) == figures[best]
    for wrong in (["--engine", "host"], ["--seeds", "0"]):
        assert train(tmp_path / "no", *more, *wrong) == 2
    assert "whole number of at least 1" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_there_is_a_twin_of_what_gymnasium_registers_itself(monkeypatch):
    assert isinstance(envs.twin_of("Acrobot-v1"), envs.Acrobot)
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


@pytest.mark.parametrize("baseline", sweeps.some(cli.BASELINES, always=["time_step"]))
def test_each_baseline_has_its_name(baseline, tmp_path):
    assert train(tmp_path / "run", "--baseline", baseline, "--epochs", "1") == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["agent"]["baseline"] == baseline


def test_evaluate_says_what_the_run_says(run, capsys):
    assert cli.main(["evaluate", str(run), "--episodes", "100"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((run / "evaluation.json").read_text())


def test_a_run_that_is_not_there_is_missed_by_its_name(tmp_path, capsys):
    assert cli.main(["evaluate", str(tmp_path / "nope")]) == 2
    assert "nope" in (said := capsys.readouterr().err) and "--env" not in said


def test_an_agent_file_is_evaluated_where_one_says(run, capsys):
    file = str(run / "agent.keras")
    assert cli.main(["evaluate", file, "--env", "CartPole-v1", "--episodes", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 3
    assert cli.main(["evaluate", file]) == 2
    assert "Give --env" in capsys.readouterr().err


def test_no_module_is_imported_on_the_word_of_a_file(run, tmp_path, capsys):
    """`module:Id` in a stranger's config.json would run the stranger's code."""
    copy = tmp_path / "stranger"
    copy.mkdir()
    (copy / "agent.keras").write_bytes((run / "agent.keras").read_bytes())
    (copy / "config.json").write_text(json.dumps({"env": "antigravity:CartPole-v1"}))
    assert cli.main(["evaluate", str(copy)]) == 2
    assert "antigravity" not in sys.modules


def test_no_path_is_opened_on_the_word_of_a_file(run, tmp_path, capsys):
    """A string among the keywords could name any file of the reader's."""
    copy = tmp_path / "stranger"
    copy.mkdir()
    (copy / "agent.keras").write_bytes((run / "agent.keras").read_bytes())
    config = {"env": "CartPole-v1", "env_kwargs": {"xml_file": "/etc/passwd"}}
    (copy / "config.json").write_text(json.dumps(config))
    assert cli.main(["evaluate", str(copy)]) == 2
    assert "only numbers and booleans are taken" in capsys.readouterr().err


def test_export_writes_a_saved_model(run, tmp_path, capsys):
    assert cli.main(["export", str(run), "--out", str(tmp_path / "policy")]) == 0
    assert (tmp_path / "policy" / "saved_model.pb").exists()


def test_a_run_is_never_overwritten(run, capsys):
    before = {path: path.read_bytes() for path in run.iterdir()}
    assert train(run) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def test_the_same_seed_writes_the_same_run(run, tmp_path):
    assert train(tmp_path / "again") == 0
    for name in ("episodes.csv", "evaluation.json", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes()
    one, two = (tfr.load(path / "agent.keras") for path in (run, tmp_path / "again"))
    for ours, theirs in zip(one.get_weights(), two.get_weights(), strict=True):
        assert (ours == theirs).all()


@pytest.mark.parametrize(
    "request_, words",
    [
        (["train", "CartPole-v1", "--epochs", "0"], "`epochs`"),
        (["train", "CartPole-v1", "--epochs", "1", "--steps", "1"], "Give either"),
        (["train", "CartPole-v1", "--seed", "-1"], "`seed`"),
        (["train", "CartPole-v1", "--gamma", "1.5"], "`gamma`"),
        (["train", "NoSuchThing-v0"], "NoSuchThing"),
        (["train", "nosuchmodule:Thing-v0"], "nosuchmodule"),
        (["train", "CartPole-v1", "--preset", "Nope"], "no preset"),
        (["train", "Taxi-v4", "--engine", "compiled"], "no tensor environment for"),
        (
            ["train", "CartPole-v1", "--engine", "compiled", "--steps-per-epoch", "9"],
            "a fixed number of episodes at once",
        ),
        (["evaluate", "nowhere", "--env", "CartPole-v1"], "no file"),
        (["export", "nowhere", "--out", "policy"], "no file"),
    ],
)
def test_a_wrong_request_gets_one_sentence_and_exit_code_2(
    request_, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(request_) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def test_an_agent_of_another_environment_is_refused(run, capsys):
    assert cli.main(["evaluate", str(run), "--env", "Pendulum-v1"]) == 2
    assert "another observation space" in capsys.readouterr().err


def test_a_failing_environment_gets_exit_code_1(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_task.py").write_text(
        "import gymnasium as gym, numpy as np\n"
        "class Broken(gym.Env):\n"
        "    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)\n"
        "    action_space = gym.spaces.Discrete(2)\n"
        "    def reset(self, seed=None, options=None):\n"
        "        return np.zeros(2, np.float32), {}\n"
        "    def step(self, action):\n"
        "        raise RuntimeError('the simulator left')\n"
        "gym.register('Broken-v0', Broken, max_episode_steps=5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert train(tmp_path / "run", env="broken_task:Broken-v0") == 1
    assert "the simulator left" in capsys.readouterr().err


def test_help_answers_without_tensorflow():
    code = (
        "import sys; from tf_reinforce import cli\n"
        "try: cli.main(['train', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True
    )


def test_ctrl_c_finishes_the_update_saves_and_exits_with_130(tmp_path):
    """The signal comes as soon as the first row of the log is there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tf_reinforce", "train", "CartPole-v1", "--epochs"]
        + ["100000", "--run-dir", str(tmp_path / "run")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:  # the first progress line
        if line.startswith("update"):
            break
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "interrupted" in rest
    agent = tfr.load(tmp_path / "run" / "agent.keras")
    assert agent.updates >= 1
    assert not (tmp_path / "run" / "evaluation.json").exists()


def test_ctrl_c_before_the_first_update_is_not_lost(tmp_path):
    """It comes once, while an environment is made."""
    signals = iter([signal.SIGINT])

    def make():
        for number in signals:
            signal.raise_signal(number)
        return toys.Clock()

    gym.register("Interrupted-v0", make)
    learner = tfr.Reinforce.for_env(toys.Clock)
    settings = {"fit": {"epochs": 3, "num_envs": 1}, "evaluation": {}, "env_kwargs": {}}
    given = dict(target=None, seed=0, verbose=False)
    result = runs.train(learner, "Interrupted-v0", tmp_path, settings, **given)
    assert result["interrupted"] and learner.updates == 0
    assert tfr.load(tmp_path / "agent.keras").updates == 0


def test_without_a_budget_training_ends_at_the_target(tmp_path):
    path = tmp_path / "run"
    arguments = ["train", "CartPole-v1", "--target-return", "60", "--run-dir", str(path)]
    assert cli.main(arguments) == 0
    evaluation = json.loads((path / "evaluation.json").read_text())
    updates = tfr.load(path / "agent.keras").updates
    assert evaluation["episode_return"] > 50
    assert updates < runs.MAX_UPDATES


def test_the_installed_program_is_the_module():
    config = (ROOT / "setup.cfg").read_text()
    assert "tf-reinforce = tf_reinforce.__main__:main" in config
    ran = subprocess.run(
        [sys.executable, "-m", "tf_reinforce", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert ran.stdout.strip() == tfr.__version__


def test_a_process_of_ours_looks_for_no_garbage_at_its_end():
    """Nearly all is TensorFlow's, and to take it apart takes a second."""
    code = (
        "import atexit, gc\n"
        "from tf_reinforce import __main__ as program\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 0))\n"
        "program.main()"
    )
    command = [sys.executable, "-c", code, "--version"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout.split() == [tfr.__version__, "True"], ran.stderr


def test_a_refused_request_leaves_no_folder_behind(tmp_path):
    """The corrected command must not find the folder taken."""
    path = tmp_path / "run"
    assert (
        cli.main(["train", "CartPole-v1", "--epochs", "0", "--run-dir", str(path)]) == 2
    )
    assert not path.exists()


def test_the_last_agent_of_a_run_is_judged_too(run):
    assert tfr.load(run / "agent.keras").updates == 2


def test_an_export_never_replaces_other_things(run, capsys):
    before = sorted(path.name for path in run.iterdir())
    assert cli.main(["export", str(run), "--out", str(run)]) == 2
    assert "Nothing was replaced" in capsys.readouterr().err
    assert sorted(path.name for path in run.iterdir()) == before


@pytest.mark.parametrize(
    "chosen, variable, said",
    [(0, {}, [1]), (4, {}, []), (0, {"TF_NUM_INTRAOP_THREADS": "2"}, [])],
)
def test_seeds_have_a_core_each_unless_somebody_chose(
    monkeypatch, chosen, variable, said
):
    import tensorflow as tf

    asked, threading = [], tf.config.threading
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    reading, setting = (f"{v}_intra_op_parallelism_threads" for v in ("get", "set"))
    monkeypatch.setattr(threading, reading, lambda: chosen)
    monkeypatch.setattr(threading, setting, asked.append)
    cli.main(["train", "CartPole-v1", "--seeds", "0"])
    assert asked == said


def test_the_best_agent_is_chosen_by_other_episodes_than_those_of_the_evaluation(
    tmp_path,
):
    seeds = []

    class Model:
        updates, stop_training = 0, False

        def evaluate(self, env, seed, **options):
            seeds.append(int(seed))
            return {"episode_return": 0.0}

        def save(self, path):
            pass

    path = tmp_path / "agent.keras"
    callback = evaluation.EvaluationCallback(
        "CartPole-v1", {}, 3, path, every=1, target=None
    )
    callback.set_model(Model())
    for update in range(3):
        callback.model.updates = update
        callback.evaluate({})
    assert len({3, *seeds}) == 4


def test_a_preset_may_evaluate_with_drawn_actions():
    settings = dict(evaluation={"deterministic": False}, fit={}, env_kwargs={})
    assert runs.evaluation_options(settings)["deterministic"] is False


# Summary


def test_end_of_the_training_is_announced_if_there_is_no_budget(tmp_path, capsys):
    target = ["--target-return", "15", "--hidden", "8", "--run-dir", str(tmp_path / "1")]
    assert cli.main(["train", "CartPole-v1", *target]) == 0
    printed = capsys.readouterr().out
    assert printed.count("training ends when an evaluation over 100 episodes") == 1
    assert "reaches the target return 15, or after 300 updates" in printed
    assert train(tmp_path / "2") == 0
    assert "training ends" not in capsys.readouterr().out


def test_next_commands_leave_out_an_export_that_was_made(first, tmp_path, capsys):
    assert "tf-reinforce export" in first[1]
    assert train(tmp_path / "run", "--export") == 0
    printed = capsys.readouterr().out
    assert "tf-reinforce export" not in printed
    assert "exported to" in printed.split("next:")[0]
    assert printed.count("mean return") == 1
    assert "evaluating the best agent on 100 new episodes …" in printed


# Requests


def test_mistakes_in_options_are_reported_without_tensorflow(run, tmp_path):
    (tmp_path / "preset.toml").write_text('env = "CartPole-v1"\n[fit]\nsteps = 0\n')
    mistakes = {
        "`gamma` must be": ["CartPole-v1", "--gamma", "1.5"],
        "There is no preset": ["CartPole-v1", "--preset", "Nope"],
        "nothing is overwritten": ["CartPole-v1", "--run-dir", str(run)],
        "`steps` must be": ["CartPole-v1", "--preset", str(tmp_path / "preset.toml")],
        "`learning_rate` must be": ["CartPole-v1", "--learning-rate", "-1"],
        "`hidden` must be a whole number": ["CartPole-v1", "--hidden", "0"],
        "doesn't exist": ["Nope-v0"],
    }
    code = (
        "import json, sys; from tf_reinforce import cli\n"
        "for mistake in json.loads(sys.argv[1]):\n"
        "    assert cli.main(['train', *mistake]) == 2\n"
        "assert cli.main(['export', 'nowhere', '--out', 'policy']) == 2\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    ran = program(json.dumps(list(mistakes.values())), code=code)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stderr.splitlines()
    assert len(lines) == len(mistakes) + 1
    for expected, line in zip([*mistakes, "no file nowhere"], lines, strict=True):
        assert expected in line


@pytest.mark.parametrize("text, number", [("1e5", 100_000), ("2.5e3", 2500), ("7", 7)])
def test_counts_may_have_an_exponent(text, number):
    options = cli._parser().parse_args(["train", "CartPole-v1", "--steps", text])
    assert options.steps == number and type(options.steps) is int


@pytest.mark.parametrize("text", ["1.5", "1e-3", "inf", "nan", "many"])
def test_counts_are_whole_numbers(text, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(["train", "CartPole-v1", "--num-envs", text])
    assert error.value.code == 2
    assert f"whole number, for example 100000 or 1e5. Received: '{text}'" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "arguments, suggestion",
    [
        (["--lr", "0.1"], "no option --lr. Use --learning-rate."),
        (["--lr=0.1"], "no option --lr. Use --learning-rate."),
        (["--timesteps", "9"], "Use --steps."),
        (["--total-timesteps", "9"], "Use --steps."),
        (["--total_timesteps", "9"], "Use --steps."),
        (["--episodes", "9"], "Use --epochs (updates), --episodes-per-epoch or --steps."),
    ],
)
def test_options_of_other_programs_get_a_suggestion(arguments, suggestion, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(["train", "CartPole-v1", *arguments])
    assert error.value.code == 2
    assert suggestion in capsys.readouterr().err
    assert "--lr" not in cli._parser().format_help()


LOCAL_ENV = """
import gymnasium as gym
import numpy as np
class Local(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}
gym.register("Local-v3", Local)
"""


def test_module_in_the_current_folder_is_imported(tmp_path, monkeypatch, capsys):
    (tmp_path / "local_task.py").write_text(LOCAL_ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", os.curdir)])
    assert train("run", env="local_task:Local") == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["env"] == "local_task:Local-v3"
    command = ["evaluate", "run", "--env", "local_task:Local-v3", "--episodes", "1"]
    assert cli.main(command) == 0


def test_module_that_is_not_there_is_named_with_a_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half_task.py").write_text("import module_that_it_needs")
    assert train("run", env="nosuchtask:Grid-v0") == 2
    printed = capsys.readouterr().err
    assert f"nosuchtask.py in the current folder, {tmp_path}" in printed
    assert train("run", env="half_task:Grid-v0") == 2
    assert "No module named 'module_that_it_needs'" in capsys.readouterr().err


def test_atari_without_its_package_names_the_extra(capsys):
    assert cli.main(["train", "ALE/Nothing-v5"]) == 2
    printed = capsys.readouterr().err
    assert 'pip install "tf-reinforce[atari]"' in printed
    config = (ROOT / "setup.cfg").read_text()
    assert "name = tf-reinforce\n" in config and "\natari = " in config


def test_id_without_version_is_explained_once(tmp_path, capsys):
    assert train(tmp_path / "run", env="CartPole") == 0
    errors = capsys.readouterr().err
    assert errors == "tf-reinforce: CartPole means CartPole-v1, its latest version\n"
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["env"] == "CartPole-v1" and config["engine"] == "compiled"


# Presets


def test_preset_that_is_not_used_is_mentioned(first, tmp_path, capsys):
    said = "there is a preset for CartPole-v1, and it is not used; add --preset"
    assert first[1].splitlines().count(said) == 1
    assert train(tmp_path / "run", env="Taxi-v4") == 0
    assert "preset for Taxi-v4" in capsys.readouterr().out


def test_preset_without_a_name_is_that_of_the_environment(tmp_path, capsys):
    assert train(tmp_path / "run", "--preset") == 0
    assert "there is a preset" not in capsys.readouterr().out
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["preset"] == "CartPole-v1"
    assert cli.main(["train", "Blackjack", "--preset", "--epochs", "0"]) == 2
    assert "`epochs`" in capsys.readouterr().err
    assert cli.main(["train", "FrozenLake8x8-v1", "--preset"]) == 2
    assert "There is no preset 'FrozenLake8x8-v1'" in capsys.readouterr().err


# Start-up messages


def program(*arguments, code=None, **variables):
    """Runs the command line, or code, in a process that has no log level."""
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


@pytest.mark.parametrize("engine", ["host", "compiled"])
def test_training_prints_no_startup_messages(engine, tmp_path):
    path = tmp_path / "run"
    small = ["--epochs", "1", "--hidden", "8", "--engine", engine]
    ran = program("train", "CartPole-v1", *small, "--run-dir", path, "--export")
    assert ran.returncode == 0
    assert ran.stderr == ""
    assert "I0000" not in ran.stdout and "XNNPACK" not in ran.stdout


def test_other_commands_print_no_startup_messages(run, tmp_path):
    for command in (
        ["evaluate", run, "--episodes", "2"],
        ["export", run, "--out", tmp_path / "policy"],
        ["explain", "--probs", "1", "2", "--action", "0"],
    ):
        ran = program(*command)
        assert (ran.returncode, ran.stderr) == (0, ""), command


def test_log_level_of_the_user_is_kept():
    ran = program("explain", "--probs", "1", "--action", "0", TF_CPP_MIN_LOG_LEVEL="0")
    assert "oneDNN" in ran.stderr
    code = (
        "import os; from tf_reinforce import startup; startup.import_tensorflow()\n"
        "print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    )
    assert program(code=code, TF_CPP_MIN_LOG_LEVEL="3").stdout == "3\n"


MESSAGES = """
import os, sys, warnings
from tf_reinforce import startup
with startup.without_startup_messages(fork=True):
    os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called\\n")
    os.write(2, b"I0000 00:00:1.2 3 port.cc:153] oneDNN custom operations are on.\\n")
    os.write(2, b"E0000 00:00:1.2 3 a.cc:5] failed call to cuInit: ERROR (303)\\n")
    os.write(2, b"E0000 00:00:1.2 3 a.cc:5] failed call to cuInit: OUT_OF_MEMORY (2)\\n")
    os.write(2, b"F0000 00:00:1.2 3 b.cc:7] needs AVX\\n")
    print("in Python", file=sys.stderr)
    END
"""


@pytest.mark.parametrize("end", ["pass", "os.abort()", "raise ValueError('here')"])
def test_errors_are_printed_also_if_the_process_dies(end):
    ran = program(code=MESSAGES.replace("END", end))
    lines = ran.stderr.splitlines()
    if end == "os.abort()":  # Python's own buffer dies with the process
        lines.insert(2, "in Python")
    assert [line.split("]")[-1].strip() for line in lines[:3]] == [
        "failed call to cuInit: OUT_OF_MEMORY (2)",
        "needs AVX",
        "in Python",
    ]
    assert (ran.returncode == 0) == (end == "pass")
    assert ("ValueError: here" in ran.stderr) == ("ValueError" in end)
