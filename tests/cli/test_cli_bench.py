"""``hookline bench``: every figure is measured, and nothing is left behind."""

import json
import tempfile

import pytest


def test_bench_measures_everything_in_the_given_directory_and_leaves_nothing_behind(tmp_path, cli, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))  # it writes nowhere else
    result = cli("bench", "--quick", "--json", "--dir", tmp_path)
    document = json.loads(result.stdout)
    measured = [(figure["benchmark"], figure["what"]) for figure in document["figures"]]
    assert measured == [
        ("dispatch", "nobody listens"),
        ("dispatch", "one callback"),
        ("dispatch", "ten callbacks"),
        ("dispatch", "ten that are not due"),
        ("recording", "1 scalar"),
        ("recording", "10 scalars"),
        ("recording", "8 samples of 2 kB"),
        ("journal", "write"),
        ("journal", "read back"),
        ("journal", "size"),
    ]
    assert all(figure["value"] > 0 for figure in document["figures"])
    assert [figure["cpu"] is not None and figure["cpu"] > 0 for figure in document["figures"]] == [True] * 7 + [
        False
    ] * 3
    assert (document["figures"][8]["note"], list(tmp_path.iterdir())) == ("0 of 5,000 rows missing", [])
    assert {"python", "cpus", "load"} <= document["environment"].keys()


def test_bench_of_one_prints_a_table_of_it_alone(cli):
    result = cli("bench", "dispatch", "--quick")
    rows = [line.split()[0] for line in result.stdout.splitlines() if " direct call " in line]
    assert (result.exit_code, rows) == (0, ["dispatch"] * 4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["dispach"], "Did you mean 'dispatch'?"), (["--dir", "nowhere"], "there is no such directory")],
)
def test_bench_given_wrongly_exits_with_two(arguments, said, cli):
    result = cli("bench", *arguments)
    assert (result.exit_code, said in result.stderr) == (2, True)
