"""Tests the notebook: its cells run, and its stored results are complete and small."""

import base64
import json
import pathlib

import pytest

PATH = pathlib.Path(__file__).parents[2] / "examples" / "reinforce_from_scratch.ipynb"
CELLS = [
    {**cell, "source": "".join(cell["source"])}
    for cell in json.loads(PATH.read_text())["cells"]
]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def printed(cells):
    """Returns the texts of all stored outputs, one after the other."""
    outputs = [output for cell in cells for output in cell["outputs"]]
    texts = [x.get("text") or x["data"].get("text/plain", "") for x in outputs]
    return "\n".join("".join(text) for text in texts)


def pictures(cells):
    data = [output.get("data", {}) for cell in cells for output in cell["outputs"]]
    return [base64.b64decode("".join(x["image/png"])) for x in data if "image/png" in x]


def check_results(cells):
    """Checks the statements of the text, in the outputs of the cells."""
    text = printed(cells)
    assert "largest difference: True" in text
    assert "0.0 True\n5.0 True\n100.0 True" in text
    assert "with baseline:    0.99" in text
    assert "largest difference of the gradients below 1e-6: True" in text
    first, last = (
        float(text.split(f"{name} five updates:")[1].split()[0])
        for name in ("first", "last")
    )
    assert last > 3 * first
    assert float(text.split("100 new episodes: ")[1].split()[0]) > 400
    assert len(pictures(cells)) == 3


def test_stored_outputs_show_what_the_text_says():
    check_results(CODE)
    assert all(len(picture) <= 60_000 for picture in pictures(CODE))
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))


def test_cells_run_with_few_updates_and_without_pictures(monkeypatch):
    world = {}
    source = "\n".join(
        cell["source"] for cell in CODE if "plt.show" not in cell["source"]
    )
    for name, value, few in (("BANDIT_STEPS", 400, 3), ("UPDATES", 60, 2)):
        assert f"{name} = {value}" in source
        source = source.replace(f"{name} = {value}", f"{name} = {few}")
    exec(compile(source.replace("range(50)", "range(2)"), PATH.name, "exec"), world)
    assert world["difference"] < 1e-6 and len(world["numpy_curve"]) == 2


@pytest.mark.slow
def test_notebook_runs_in_a_kernel_and_repeats_its_results(tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(PATH.parents[1]))
    notebook = nbformat.read(PATH, as_version=4)
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=folder).execute()
    check_results([cell for cell in notebook.cells if cell.cell_type == "code"])
