"""Tests that a stranger's `config.json` cannot start more than a preset may."""

import json
import math
import pathlib
import shlex
import shutil

import pytest

from tf_reinforce.cli import entry
from tf_reinforce.cli import plans
from tf_reinforce.experiments import runs
from tf_reinforce.settings import run_config
from tf_reinforce.support import validation

AGENT = {"hidden": [8], "learning_rate": 0.01, "baseline": "mean"}
VALUE = {"kind": "value", "hidden": [4], "learning_rate": 0.01}
SETTINGS = {
    "env": "CartPole-v1",
    "engine": "host",
    "seed": 0,
    "env_kwargs": {},
    "agent": AGENT,
    "fit": {"epochs": 1},
    "evaluation": {},
    "checkpoint": {},
}


@pytest.fixture
def read(tmp_path):
    """Returns a function that writes a changed `config.json` and reads the training."""

    def read_changed(table, values, **explicit):
        content = {**SETTINGS, table: values}
        (tmp_path / "config.json").write_text(json.dumps(content))
        return run_config.read_training(
            tmp_path, **{"env_kwargs": {}, "fit": {}, **explicit}
        )

    return read_changed


@pytest.mark.parametrize(
    "changes, words",
    [
        ({}, ""),
        ({"env": "own_env:Grid-v0", "env_kwargs": {"size": 3}}, "own_env:Grid-v0"),
        ({"env_kwargs": {"map": "a b", "flip": True}}, "--env-arg 'map=a b'"),
        ({"env_kwargs": {"a": "5", "b": None, "c": [1]}}, "--env-arg"),
    ],
)
def test_resume_command_repeats_the_settings_that_no_file_may_contain(
    changes, words, tmp_path, monkeypatch
):
    """The command is parsed as a shell and `tf-reinforce` would."""
    monkeypatch.setattr(plans, "find_env", lambda env: env)
    folder = tmp_path / "a folder"
    folder.mkdir()
    config = {**SETTINGS, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    command = run_config.resume_command(folder, config)
    program, *arguments = shlex.split(command)
    assert program == "tf-reinforce" and words in command
    assert words or arguments == ["train", "--resume", str(folder)]
    options = entry.make_parser().parse_args(arguments)
    plan = plans.make(options)
    assert plan.settings["env_kwargs"] == config["env_kwargs"]
    assert plan.settings["fit"] == config["fit"] and plan.env == config["env"]


def test_run_continues_in_its_own_environment(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SETTINGS))
    arguments = ["train", "Pendulum-v1", "--resume", str(tmp_path)]
    options = entry.make_parser().parse_args(arguments)
    with pytest.raises(ValueError, match="Expected: CartPole-v1. Received: Pendulum-v1"):
        plans.make(options)


@pytest.mark.parametrize("evaluation", [{}, {"max_episode_steps": 9}])
def test_commands_for_a_run_have_the_time_limit_of_its_evaluation(evaluation, tmp_path):
    fit = {"epochs": 1, "max_episode_steps": 5}
    config = {**SETTINGS, "fit": fit, "evaluation": evaluation}
    (tmp_path / "config.json").write_text(json.dumps(config))
    env, options = run_config.read_env(tmp_path, {})
    expected = runs.evaluation_options(config)
    assert env == "CartPole-v1"
    assert options == {name: expected[name] for name in options}
    assert options["max_episode_steps"] == evaluation.get("max_episode_steps")


@pytest.mark.parametrize("target, stop", [(9.0, {"stop_at_return": 9.0}), (None, {})])
def test_run_of_format_1_without_a_budget_ends_where_it_did(target, stop, tmp_path):
    """At its target, if it has one, or after 300 updates."""
    for fit, budget, callbacks in (
        ({"num_envs": 3}, {"num_envs": 3, "epochs": 300}, {"diagnose": True, **stop}),
        ({"steps": 7}, {"steps": 7}, {"diagnose": True}),
    ):
        old = {"fit": fit, "target_return": target, "callbacks": {"diagnose": True}}
        (tmp_path / "config.json").write_text(json.dumps(old))
        found = run_config.read(tmp_path)
        assert (found["fit"], found["callbacks"]) == (budget, callbacks)


def fit_table(name, value):
    if name == "workers":  # at most one worker for each episode
        return {"epochs": 1, "episodes_per_epoch": 100, name: value}
    return {name: value} if name == "steps" else {"epochs": 1, name: value}


def test_only_options_that_do_not_change_the_result_may_differ(read):
    received = read("fit", {"epochs": 1}, fit={"workers": 2, "num_envs": 3})
    assert received["fit"] == {"epochs": 1, "workers": 2, "num_envs": 3}
    for name in ("epochs", "steps", "episodes_per_epoch", "max_episode_steps"):
        with pytest.raises(ValueError, match=f"another `{name}`.* omit the option"):
            read("fit", fit_table(name, 5), fit={name: 6})


@pytest.mark.parametrize(
    ("table", "values", "message"),
    [
        ("agent", {"steps_per_execution": 10_001}, r"must be .* in .1, 10000"),
        ("agent", {"passes": validation.MAX_REPEATS + 1}, r"`passes` .* in .1, 10000"),
        (
            "agent",
            {"baseline": {**VALUE, "passes": 10_001}},
            r"`baseline.passes` .*10000",
        ),
        ("agent", {"gamma": 10**400}, "`gamma` must be a finite number"),
        ("checkpoint", {"every_seconds": 10**400}, "`every_seconds` must be a finite"),
        ("agent", {"hidden": None}, "`hidden` must be"),
        ("seeds", [], "`seeds` must be"),
        ("seeds", [1, 3], "one after the other"),
        ("seeds", list(range(1025)), "at most 1024"),
        ("fit", {"epochs": 1, "num_envs": 4097}, r"`num_envs` .* in .1, 4096"),
    ],
)
def test_invalid_settings_are_refused(table, values, message, read):
    """Passes have the limit of agent files, which could not be loaded otherwise."""
    values = {**SETTINGS[table], **values} if table in SETTINGS else values
    with pytest.raises(ValueError, match=message):
        read(table, values)
    read("agent", {**AGENT, "passes": validation.MAX_REPEATS, "steps_per_execution": 32})


RUN = pathlib.Path(__file__).parent.parent / "files" / "2" / "run_host"
COMMANDS = [["evaluate"], ["record"], ["plot"], ["compare"], ["info"]]
COMMANDS += [["train", "--resume"]]
WRONG = {name: [5, [1], {"a": 1}] for name in ("env", "model", "preset", "make_agent")}
WRONG["only_in_script"] = [5, "abc", {}, [5]]
WRONG["target_return"] = ["9", math.nan]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_entry_of_a_wrong_type_is_refused_in_one_line(words, tmp_path, capsys):
    """Each command reads some entries; the file may come from a stranger."""
    shutil.copytree(RUN, tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    content = json.loads(path.read_text())
    cases = [({name: x}, name) for name, values in WRONG.items() for x in values]
    if words in (["evaluate"], ["record"], ["train", "--resume"]):
        tables = {"fit": "info_keys", "evaluation": "max_episode_steps"}
        cases += [({x: {**content[x], y: {"a": 1}}}, y) for x, y in tables.items()]
    for change, name in cases:
        path.write_text(json.dumps({**content, **change}))
        assert entry.main([*words, str(tmp_path / "run")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"`{name}` must be" in line and "Received: " in line
