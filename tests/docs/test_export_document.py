"""Tests that the code and the commands of docs/export.md run."""

import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "export.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Runs the Python blocks of the page in a new folder, and returns their names."""
    folder = tmp_path_factory.mktemp("exports")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names = {"print": lambda *args: printed.append(str(*args))}
        printed = []
        for block in blocks("python"):
            exec(compile(block, "export.md", "exec"), names)
    return {**names, "folder": folder, "printed": printed}


@pytest.mark.slow
def test_python_blocks_of_the_page_run(exports):
    assert exports["report"].passed and exports["report"].observations == 200
    assert exports["actions"].shape == (8,)


@pytest.mark.slow
def test_page_shows_the_printed_arguments(exports):
    assert "\n".join(exports["printed"]) in TEXT


@pytest.mark.slow
def test_litert_example_selects_the_actions_of_the_agent(exports):
    """The program runs in a process of its own, with only NumPy and LiteRT."""
    path = ROOT / "examples" / "litert_policy.py"
    assert len(path.read_text().splitlines()) <= 40
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
    lines = "\n".join(json.dumps(row.tolist()) for row in observations)
    blocked = "import sys; sys.modules.update(tensorflow=None, tf_reinforce=None); "
    code = blocked + "import runpy; runpy.run_path(sys.argv.pop(1))"
    command = [sys.executable, "-c", code, path, exports["folder"] / "policy_litert"]
    for name in ("act", "sample"):
        process = subprocess.run(
            [*command, name], input=lines, capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr
        actions = [json.loads(line) for line in process.stdout.splitlines()]
        expected = exports["agent"].act(observations, deterministic=True)
        assert len(actions) == 20 and set(actions) <= {0, 1}
        assert name == "sample" or actions == expected.tolist()
