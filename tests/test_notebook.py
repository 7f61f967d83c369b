"""The notebook among the examples is executed from top to bottom in a kernel of its own, and shows what it promises."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The cells of code, with their outputs."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    directory = tmp_path_factory.mktemp("notebook")
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(directory)}}).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout")


def shown(cell, kind):
    return [output.data[kind] for output in cell.outputs if kind in output.get("data", {})]


def test_notebook_trains_a_bare_loop_and_stops_by_a_callback(cells):
    assert printed(cells[0]) == "completed after 120 steps: weight 2.96\n"
    assert printed(cells[1]).startswith("stopped after ")
    assert printed(cells[1]).endswith("the average is below 0.02\n")


def test_notebook_shows_one_picture_that_was_redrawn(cells):
    assert printed(cells[2]) == "drawn 6 times\n"
    assert len(shown(cells[2], "image/png")) == 1


def test_notebook_reads_back_what_it_recorded(cells):
    assert "120 of them rows with a loss" in printed(cells[3])
    (table,) = shown(cells[4], "text/plain")
    assert [line.partition(" ")[0].partition("/")[0] for line in table.splitlines()[2:]] == ["lines"] * 3
    assert "('live', 'finished', 120), ('smooth', 'stopped'" in printed(cells[5])
    assert shown(cells[5], "text/plain") == ["{'rate': 0.1}"]


def test_notebook_is_kept_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    kept = [cell.outputs or cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert kept == [None] * len(kept)
