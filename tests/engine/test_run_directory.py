"""Tests the run directory of `fit(resume=…)`: its files, and how a program goes on."""

import copy
import csv
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import types

import gymnasium as gym
import keras
import numpy as np
import pytest
import toys

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.cli import train as train_command
from tf_reinforce.engine import agent_state
from tf_reinforce.engine import run_directory
from tf_reinforce.engine import validation
from tf_reinforce.settings import config as settings
from tf_reinforce.settings import run_config

FIT = dict(episodes_per_epoch=4, max_episode_steps=20, num_envs=2, verbose=0)
FIT |= dict(validation_freq=2, validation_episodes=3)
FILES = {"log.csv", "episodes.csv", "agent.keras", "last.keras", "checkpoints", ".lock"}
FILES |= {"config.json", "versions.json", "command.txt", "evaluation.json"}


def own_agent(seed=0):
    """Returns an agent of a model of the user."""
    keras.utils.set_random_seed(seed)
    policy = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)], name="mine")
    agent = tfr.Reinforce(policy, gamma=0.9)
    agent.compile(keras.optimizers.Adam(0.05))
    return agent


def log(folder):
    """Returns the rows of a log without the speed."""
    rows = csv.DictReader((folder / "log.csv").read_text().splitlines())
    return [{k: x for k, x in row.items() if k != "steps_per_second"} for row in rows]


def weights(agent):
    return [x.numpy().tobytes() for x in agent_state.variables(agent)]


def expect_equal_runs(first, second):
    """Compares all that two runs of one training wrote, but command and speed."""
    assert {x.name for x in first.iterdir()} == {x.name for x in second.iterdir()}
    for name in ("episodes.csv", "config.json", "versions.json", "evaluation.json"):
        assert (first / name).read_text() == (second / name).read_text(), name
    assert log(first) == log(second)
    for name in ("agent.keras", "last.keras"):
        assert weights(tfr.load(first / name)) == weights(tfr.load(second / name))
    newest = [tfr.Checkpoints(folder).newest() for folder in (first, second)]
    for one, other in zip(*(x.state["variables"] for x in newest), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_run_from_python_equals_one_from_the_command_line(tmp_path, capsys):
    """The same agent, settings and seed; `config.json` has the same content too."""
    options = ["--hidden", "4", "--epochs", "5", "--episodes-per-epoch", "4"]
    options += ["--num-envs", "2", "--max-episode-steps", "20", "--seed", "3"]
    options += ["--eval-every", "2", "--eval-episodes", "3", "--engine", "host"]
    options += ["--run-dir", str(tmp_path / "a"), "--tensorboard", "--no-preset"]
    assert cli.main(["train", "CartPole-v1", *options]) == 0
    printed = capsys.readouterr().out
    assert "\ndiagnosis: " in printed and "\nthe preset CartPole-v1 has" in printed
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,), seed=3)
    logger = tfr.callbacks.TensorBoardLogger(tmp_path / "b" / "tensorboard")
    options = {**FIT, "resume": tmp_path / "b", "callbacks": [logger]}
    agent.fit("CartPole-v1", epochs=5, seed=3, **options)
    expect_equal_runs(tmp_path / "a", tmp_path / "b")
    assert {x.name for x in (tmp_path / "b").iterdir()} == FILES | {"tensorboard"}
    assert cli.main(["train", "--resume", str(tmp_path / "b")]) == 0
    assert "finished after update 5 of 5" in capsys.readouterr().out


def test_command_line_continues_a_run_of_an_own_model_to_the_same_bits(tmp_path, capsys):
    """The agent is in `last.keras`, so the command runs no code of the program."""

    def stop(epoch, logs):
        if epoch == 2:
            signal.raise_signal(signal.SIGINT)

    loud = {**FIT, "verbose": 1}
    own_agent().fit("CartPole-v1", epochs=6, resume=tmp_path / "a", **loud)
    assert 'use `preset="CartPole-v1"` of `for_env`\n' in capsys.readouterr().out
    interrupt = keras.callbacks.LambdaCallback(on_epoch_end=stop)
    with pytest.raises(KeyboardInterrupt, match="after update 3 of 6. To continue, "):
        own_agent().fit(
            "CartPole-v1", epochs=6, resume=tmp_path / "b", callbacks=[interrupt], **FIT
        )
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert config["only_in_script"] == ["callbacks"] and config["agent"] == {}
    assert cli.main(["train", "--resume", str(tmp_path / "b")]) == 2
    assert "its callbacks can be in no file" in capsys.readouterr().err
    config = {**config, "only_in_script": []}
    run_config.write_json(tmp_path / "b" / "config.json", config)
    size, resume = (tmp_path / "b" / "last.keras").stat().st_size, ["train", "--resume"]
    resume += [str(tmp_path / "b"), "--max-bytes"]
    assert cli.main([*resume, str(size - 1)]) == 2
    assert f"or `--max-bytes {size}`." in capsys.readouterr().err
    assert cli.main([*resume, str(size)]) == 0
    printed = capsys.readouterr().out
    assert "continuing at update 4 of 6\n" in printed
    assert "use `--preset CartPole-v1`\n" in printed
    expect_equal_runs(tmp_path / "a", tmp_path / "b")
    assert config["model"] == "mine, 10 weights"


@pytest.mark.parametrize("first", [[9.0, 5.0, 7.0], [5.0, 7.0, 9.0]])
def test_the_best_agent_is_evaluated_and_the_last_one_returned(
    first, tmp_path, monkeypatch
):
    """It stays the best if the training becomes longer."""
    returns = iter([*first, 6.0, 8.0])
    seen, evaluate = [], tfr.Reinforce.trainer.fget

    class Spy:
        def __init__(self, trainer):
            self.trainer = trainer

        def __getattr__(self, name):
            return getattr(self.trainer, name)

        def evaluate(self, envs, key, *arguments):
            seen.append((key.stream, weights(self.trainer.agent)))
            value = next(returns) if key.stream == "validation" else 1.0
            metrics = self.trainer.evaluate(envs, key, *arguments)
            return {**metrics, "episode_return": value}

    monkeypatch.setattr(
        tfr.Reinforce, "trainer", property(lambda self: Spy(evaluate(self)))
    )
    agent = own_agent()
    agent.fit("CartPole-v1", epochs=5, resume=tmp_path, **FIT)
    assert [stream for stream, _ in seen] == ["validation"] * 3 + ["evaluation"]
    best = seen[first.index(9.0)][1]
    assert seen[3][1] == best == weights(tfr.load(tmp_path / "agent.keras"))
    assert seen[2][1] == weights(tfr.load(tmp_path / "last.keras")) == weights(agent)
    assert json.loads((tmp_path / "evaluation.json").read_text())["episode_return"] == 1
    own_agent().fit("CartPole-v1", epochs=7, resume=tmp_path, **FIT)
    assert len(seen) == 7 and seen[6][1] == best


@pytest.mark.parametrize("freq", [2, 9])
def test_averaged_weights_are_those_of_the_last_agent(freq, tmp_path, monkeypatch):
    """They are validated too, and here they are better than the weights before."""
    values = iter([1.0, 2.0, 3.0])
    rest = dict(episode_return_std=0.0, episodes=3.0)
    monkeypatch.setattr(
        validation.Validation, "play", lambda *_: {"episode_return": next(values), **rest}
    )
    agent = own_agent()
    agent.compile(keras.optimizers.Adam(0.05, use_ema=True))
    options = {**FIT, "validation_freq": freq}
    agent.fit("CartPole-v1", epochs=2, resume=tmp_path, **options)
    for name in ("last.keras", "agent.keras"):
        assert weights(tfr.load(tmp_path / name)) == weights(agent)


def test_other_threads_wait_while_the_agent_has_its_best_weights(tmp_path, monkeypatch):
    """Otherwise they would save an earlier agent, or a mixture."""
    returns, waits = iter([2.0, 1.0]), []
    play = validation.Validation.play

    def spy(self, stream, number):
        if stream == "validation":
            return {"episode_return": next(returns)}
        (thread := threading.Thread(target=try_to_lock)).start()
        thread.join()
        return play(self, stream, number)

    def try_to_lock():  # as `agent.save` does
        waits.append(agent._weights_lock.acquire(blocking=False))
        if waits[-1]:
            agent._weights_lock.release()

    agent = own_agent()
    monkeypatch.setattr(validation.Validation, "play", spy)
    agent.fit("CartPole-v1", epochs=3, resume=tmp_path, **FIT)
    assert waits == [False] and agent.updates == 3
    assert tfr.load(tmp_path / "agent.keras").updates == 2


def test_a_run_without_checkpoints_begins_anew_unless_it_has_finished(tmp_path):
    """Nothing of the earlier training remains, which was in another environment."""
    own_agent().fit("CartPole-v1", epochs=2, resume=tmp_path, **FIT)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(FileExistsError, match="a finished run without a checkpoint"):
        own_agent().fit("CartPole-v1", epochs=2, resume=tmp_path, **FIT)
    assert {x.name for x in tmp_path.iterdir()} == FILES - {"checkpoints"}
    (tmp_path / "evaluation.json").unlink()  # as if it had been killed
    (tmp_path / "command.txt").write_text("another")
    agent = tfr.Reinforce.for_env(toys.Bandit, hidden=())
    agent.fit(toys.Bandit, epochs=2, resume=tmp_path, **{**FIT, "validation_freq": 9})
    assert tfr.load(tmp_path / "agent.keras").action_space == agent.action_space
    assert "another" not in (tmp_path / "command.txt").read_text()
    assert json.loads((tmp_path / "evaluation.json").read_text())["updates"] == 2


def test_missed_target_is_diagnosed(tmp_path, capsys):
    options = {**FIT, "verbose": 1, "validation_freq": []}
    own_agent().fit("CartPole-v1", epochs=1, resume=tmp_path, **options)
    printed = capsys.readouterr().out
    assert re.search(
        "target 475 missed\ndiagnosis: .*\nthe preset CartPole-v1 has", printed
    )


def test_evaluation_without_numbers_is_made_again(tmp_path):
    """The file may come from a stranger; a key that no episode has gives NaN."""
    path, contents = tmp_path / "evaluation.json", []
    for change in ({}, {"episodes": None}, {"episode_return": "1"}):
        if contents:
            path.write_text(json.dumps({**contents[0], **change}))
        own_agent().fit("CartPole-v1", epochs=1, resume=tmp_path, **FIT)
        contents.append(json.loads(path.read_text()))
    assert all(content == contents[0] for content in contents)
    assert contents[0]["updates"] == 1 and contents[0]["episodes"] == 3


def test_without_validations_the_last_agent_is_the_best(tmp_path):
    agent = own_agent()
    options = {**FIT, "validation_freq": []}
    agent.fit("CartPole-v1", epochs=2, resume=tmp_path, **options)
    assert weights(tfr.load(tmp_path / "agent.keras")) == weights(agent)
    assert not any("val_episode_return" in key for row in log(tmp_path) for key in row)


class LateSuccess(toys.Bandit):
    """The first episode reports no success."""

    episodes = 0

    def step(self, action):
        *answer, info = super().step(action)
        self.episodes += 1
        return *answer, {**info, "is_success": True} if self.episodes > 1 else info


def test_log_has_a_column_for_each_key_of_the_history(tmp_path):
    """Also for those that come with a later epoch or validation."""
    agent = tfr.Reinforce.for_env(LateSuccess, hidden=())
    options = dict(on_env_error="restart", validation_freq=3, validation_episodes=5)
    options |= dict(epochs=3, episodes_per_epoch=1, num_envs=1, verbose=0)
    history = agent.fit(LateSuccess, resume=tmp_path, **options).history
    assert len(history["success"]) < len(history["loss"])
    assert len(history["val_success"]) == len(history["val_env_restarts"]) == 1
    assert {*history, "epoch"} == {*log(tmp_path)[0], "steps_per_second"}


@pytest.mark.parametrize("make", [toys.Bandit, toys.Bandit()], ids=["class", "instance"])
def test_validation_in_the_environment_of_the_training_changes_nothing(make, tmp_path):
    """Also where both play in the same instance."""
    results = []
    for freq in (1, []):
        agent = tfr.Reinforce.for_env(make, hidden=(2,), seed=1)
        options = {**FIT, "validation_freq": freq, "num_envs": 1}
        agent.fit(make, epochs=4, resume=tmp_path / f"run{freq}", **options)
        results.append(weights(agent))
    assert results[0] == results[1]


@pytest.mark.parametrize("name", ["log.csv", "config.json", "agent.keras"])
def test_files_of_the_user_are_kept(name, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(FileExistsError, match=f"contains {name}, and no run that wrote"):
        own_agent().fit("CartPole-v1", epochs=1, resume=tmp_path, **FIT)
    assert (tmp_path / name).read_text() == "{}"
    assert {x.name for x in tmp_path.iterdir()} <= {name, ".lock"}


class NoLog(keras.callbacks.Callback):
    """A callback with an attribute of the name that those of Keras use for a path."""

    def __init__(self, filename):
        super().__init__()
        self.filename = filename


def test_numbers_and_paths_of_other_types_are_stored_as_json(tmp_path):
    preset = tmp_path / "own.toml"
    preset.write_text("[fit]\nepochs = 1")
    spec = copy.deepcopy(gym.spec("CartPole-v1"))
    spec.reward_threshold = np.float32(3)
    agent = tfr.Reinforce.for_env(spec, preset=preset, hidden=(np.int64(2),))
    two, yes, second = np.int64(2), np.bool_(True), np.float32(1)
    fit = {name: np.int64(x) for name, x in FIT.items()}
    fit |= dict(validation_freq={two, 1}, validation_deterministic=yes, seed=two)
    fit |= dict(initial_epoch=np.int64(0), callbacks=[NoLog(None), NoLog(5)])
    options = dict(every_seconds=second, grace_seconds=second, every_updates=two)
    agent.fit(spec, **fit, resume=tfr.Checkpoints(tmp_path / "run", **options))
    config = run_config.read(tmp_path / "run")
    assert config["preset"] == str(preset) and config["target_return"] == 3.0
    limits = {"episodes": 3, "max_episode_steps": 20, "deterministic": True}
    assert config["evaluation"] == {"every": [1, 2], **limits}
    assert config["checkpoint"] == {name: int(x) for name, x in options.items()}


@pytest.mark.parametrize("freq", [range(1, 3), (2, 1), {1, 2}, [np.int64(2), 1, 1]])
def test_epochs_of_validations_are_a_sorted_list(freq):
    given = dict.fromkeys(("resume", "max_episode_steps", "validation_deterministic"))
    given |= {"validation_freq": freq, "validation_episodes": None}
    assert settings.validation_table(given, None, None)["every"] == [1, 2]


def test_callbacks_of_the_user_are_no_options_and_keep_their_log(tmp_path):
    """`config.json` names those that an option makes. Each here differs in one point."""
    path = tmp_path / "run" / "log.csv"
    path.parent.mkdir()
    own = [keras.callbacks.CSVLogger(path), tfr.callbacks.StopAtReturn(1e9)]
    own += [tfr.callbacks.TensorBoardLogger(tmp_path / "tensorboard")]
    own += [tfr.callbacks.Diagnostics(every=9)]
    options = {**FIT, "callbacks": own, "resume": path.parent}
    options["env_kwargs"] = {"sutton_barto_reward": np.True_}  # no JSON
    own_agent().fit("CartPole-v1", epochs=1, **options)
    assert len(log(path.parent)) == 1
    config = json.loads((path.parent / "config.json").read_text())
    assert config["only_in_script"] == ["env_kwargs", "callbacks"]
    assert (config["callbacks"], config["env_kwargs"]) == ({}, {})
    assert config["fit"]["epochs"] == 1


@pytest.mark.parametrize("kind", ["scalars", "histograms"])
def test_callbacks_of_options_are_recorded_as_these_options(kind, tmp_path):
    table = {"diagnose": True, "tensorboard": kind, "stop_at_return": 3.0}
    assert table.keys() == settings.TABLES["callbacks"].keys()
    made = train_command.make_callbacks({"callbacks": table}, tmp_path)
    assert run_directory._callback_table(made, tmp_path) == (table, False)


@pytest.mark.parametrize(
    "preset, callbacks, target",
    [
        ({"target": 2.0}, {"stop_at_return": 3.0}, 2.0),
        ({}, {"stop_at_return": 3.0}, 3.0),
        (None, {}, 475.0),
    ],
)
def test_target_is_that_of_the_preset_or_of_a_callback(preset, callbacks, target):
    agent = types.SimpleNamespace(_fit_defaults={"evaluation": preset})
    assert run_directory._target(agent, "CartPole-v1", callbacks) == target


def test_only_the_environments_of_the_package_are_twins():
    class OtherCartPole(tfr.envs.CartPole):
        pass

    for env, expected in (
        (tfr.envs.CartPole(), "CartPole-v1"),
        (tfr.envs.CartPole(dtype="float64"), None),
        (OtherCartPole(), None),
        (type("CartPole", (OtherCartPole,), {})(), None),
        (tfr.envs.Pendulum(), None),
    ):
        assert run_directory._twin_id(env, "CartPole-v1") == expected


def test_command_line_refuses_what_only_the_program_has(tmp_path, capsys):
    """A wrapped instance has the id of the plain environment, which is another one."""
    wrapped = gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda x: 2 * x)
    options = {"validation_env": gym.make("CartPole-v1"), "validation_freq": [2]}
    options |= {"reset_options": {"low": 0.0}, "env_attrs": {"x_threshold": 2.0}}
    options |= {"initial_epoch": 1, "epochs": 2}
    own_agent().fit(wrapped, resume=tmp_path, **{**FIT, "num_envs": 1, **options})
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["only_in_script"] == ["env", *list(options)[:-1]]
    assert cli.main(["train", "--resume", str(tmp_path)]) == 2
    assert f"its {', '.join(config['only_in_script'])} can" in capsys.readouterr().err
    assert cli.main(["evaluate", str(tmp_path)]) == 2
    assert "only if you trust it: --env CartPole-v1" in capsys.readouterr().err


class NoConfig(keras.Model):
    """A model that Keras cannot save."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs):
        return self.layer(inputs)


def test_a_model_that_keras_cannot_save_is_kept_as_weights(tmp_path, caplog, capsys):
    def train(epochs):
        keras.utils.set_random_seed(0)
        agent = tfr.Reinforce(NoConfig(keras.layers.Dense(2)))
        agent.compile("adam")
        return agent.fit("CartPole-v1", epochs=epochs, resume=tmp_path, **FIT)

    train(2)
    assert "agent.weights.h5" in caplog.text
    assert cli.main(["train", "--resume", str(tmp_path)]) == 2
    assert "its model can be in no file" in capsys.readouterr().err
    assert cli.main(["evaluate", str(tmp_path)]) == 2
    assert "agent.load_weights(" in capsys.readouterr().err
    assert train(3).epoch == [0, 1, 2]
    assert json.loads((tmp_path / "config.json").read_text())["fit"]["epochs"] == 3
    assert json.loads((tmp_path / "evaluation.json").read_text())["updates"] == 3
    names = {x.name for x in tmp_path.iterdir()}
    assert names >= {"agent.weights.h5", "last.weights.h5", "evaluation.json"}


SCRIPT = """
import signal, sys
import tf_reinforce as tfr
class Stop(tfr.callbacks.EpisodeCallback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 == int(sys.argv[2]):
            signal.raise_signal(signal.SIGINT)
options = dict(episodes_per_epoch=2, max_episode_steps=9, validation_episodes=2)
for _ in range(2):
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,))
    agent.fit("CartPole-v1", epochs=4, resume=sys.argv[1], callbacks=[Stop()], **options)
    print("the program goes on")
"""


@pytest.mark.slow
def test_a_script_that_ctrl_c_ends_says_so_in_a_line_and_goes_on(tmp_path):
    """The second start continues, and then has a finished run."""
    (tmp_path / "script.py").write_text(SCRIPT)

    def start(stop):
        command = [sys.executable, "script.py", "run", str(stop)]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        errors = [x for x in ran.stderr.splitlines() if x.startswith("interrupted")]
        assert "Traceback" not in ran.stderr
        return ran.returncode, ran.stdout.splitlines(), errors

    code, _, errors = start(2)
    assert (code, len(errors)) == (-signal.SIGINT, 1)
    assert errors[0].startswith("interrupted after update 2 of 4. To continue, start")
    code, lines, errors = start(0)
    assert (code, lines[0], errors) == (0, "continuing at update 3 of 4", [])
    end = lines.index("the program goes on")
    again = lines[end + 1 :]
    assert lines[end - 1] == "saved in run" and again[-1] == lines[end]
    assert again[0] == "finished after update 4 of 4"
    assert again[2].partition(":")[0] == "CartPole-v1"
    command = (tmp_path / "run" / "command.txt").read_text()
    assert command == f"{sys.executable} script.py run 2\n"


@keras.saving.register_keras_serializable("test_run_directory")
def is_largest(inputs, choices):
    return (inputs[:, :3].argmax(axis=1) == choices).astype("float32")


def test_a_score_function_writes_a_run_that_the_commands_read(tmp_path, capsys):
    run = tmp_path / "run"
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    for epochs in (2, 4):  # the second one continues
        keras.utils.set_random_seed(0)
        inputs = keras.Input((4,))
        choice = tfr.layers.Sample(tfr.heads.Categorical(3), seed=1)
        outputs = choice(keras.layers.Dense(3)(inputs))
        model = tfr.ScoreFunction(keras.Model(inputs, outputs), reward=is_largest)
        model.compile(keras.optimizers.Adam(0.1))
        data = dict(validation_data=(x, None), validation_freq=2, batch_size=16)
        model.fit(x, epochs=np.int64(epochs), resume=run, verbose=1, **data)
        printed = capsys.readouterr().out
        assert ("continuing at epoch 3 of 4\n" in printed) == (epochs == 4)
    rows = log(run)
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3"]
    values = [float(row["val_reward"]) for row in rows]
    assert np.isnan(values).tolist() == [True, False, True, False]
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert evaluation["reward"] == max(values[1::2])
    assert {"agent.keras", "last.keras", "config.json"} <= {x.name for x in run.iterdir()}
    assert cli.main(["train", "--resume", str(run)]) == 2
    assert "a run of ScoreFunction. Only the program" in capsys.readouterr().err
    assert cli.main(["info", str(run)]) == 0
    assert "ScoreFunction" in capsys.readouterr().out


@pytest.mark.parametrize("validates, best", [(True, [1.0]), (False, [1.0, 2.0])])
def test_best_model_is_that_of_the_validations_if_there_are_some(
    validates, best, tmp_path
):
    saved, options = [], dict(callbacks=[], verbose=0, epochs=2)
    with run_directory.of_model(None, tmp_path, {}, validates, options) as run:
        run.best.save = saved.append
        for epoch, (reward, validated) in enumerate([(1.0, 3.0), (2.0, 2.0)]):
            logs = {"loss": 0.0, "reward": reward, "val_reward": validated}
            run.best.on_epoch_end(epoch, logs)
    assert [logs["reward"] for logs in saved] == best
