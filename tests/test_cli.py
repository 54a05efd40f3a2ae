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
    assert "nothing was replaced" in capsys.readouterr().err
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
    judge = evaluation.EvaluationCallback(
        "CartPole-v1", {}, 3, path, every=1, target=None
    )
    judge.set_model(Model())
    for update in range(3):
        judge.model.updates = update
        judge.judge({})
    assert len({3, *seeds}) == 4


def test_a_preset_may_evaluate_with_drawn_actions():
    settings = dict(evaluation={"deterministic": False}, fit={}, env_kwargs={})
    assert runs.evaluation_options(settings)["deterministic"] is False
