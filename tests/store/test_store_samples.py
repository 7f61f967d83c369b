"""Samples of the store: filters, annotations, and their export as training data."""

import json
import threading

import pytest

import hookline as hl
from hookline.store import annotations
from hookline.store.annotations import ANNOTATIONS_FILE, annotate, read_annotations


def chat(text, role="assistant"):
    return [{"role": role, "content": text}]


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "runs"
    rows = [
        {
            "prompt": "a?",
            "completion": "one",
            "group": "g1",
            "total": 1.0,
            "rewards": {"x": 0.1},
            "version": 1,
            "length": 5,
        },
        {
            "prompt": "a?",
            "completion": "two",
            "group": "g1",
            "total": 0.0,
            "rewards": {"x": 0.9},
            "version": 2,
            "finish": "length",
        },
        {"prompt": "b?", "completion": "same", "group": "g2", "total": 0.5},
        {"prompt": "b?", "completion": "other", "group": "g2", "total": 0.5},
        {"prompt": chat("c?", "user"), "completion": [*chat("r", "tool"), *chat("three")], "total": float("nan")},
    ]
    with hl.run("samples", root=root, summary=False, console=False) as run:
        run.log_samples(rows)
    return root


def ids(runs, **given):
    return [row["completion"] for row in runs.samples(**given)]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"role": "tool"}, ["three"]),
        ({"finish": "length"}, ["two"]),
        ({"versions": (2, None)}, ["two"]),
        ({"lengths": (None, 4)}, ["two", "same"]),
        ({"order": "-version", "versions": (1, 9)}, ["two", "one"]),
        ({"order": "reward", "reward": "x", "max_reward": 1.0}, ["one", "two"]),
        ({"order": "prompt"}, ["one", "two", "same", "other", "three"]),
        ({"order": "-length"}, ["one", "other", "three", "same", "two"]),
    ],
    ids=str,
)
def test_samples_are_filtered_and_sorted_by_what_was_recorded(root, given, found):
    assert ids(hl.runs(root), **given) == found


def annotated(root, **labels):
    runs = hl.runs(root)
    known = {row["completion"]: row["id"] for row in runs.samples()}
    annotate(runs[0].directory, {known[name]: (label, None) for name, label in labels.items()})
    return runs


def test_annotations_filter_samples_and_are_removed_by_empty_texts(root):
    runs = annotated(root, one="good", two="bad")
    assert (ids(runs, label="good"), ids(runs, label="bad")) == (["one"], ["two"])
    [key] = [row["id"] for row in runs.samples(label="good")]
    annotate(runs[0].directory, {key: ("", "a note")})
    assert (ids(runs, label="good"), ids(runs, label="any")) == ([], ["one", "two"])
    annotate(runs[0].directory, {key: (None, "")})
    assert ids(runs, label="any") == ["two"]
    with pytest.raises(hl.OptionError, match="'good', 'bad' or 'any'"):
        runs.samples(label="best")


def test_annotations_that_could_not_be_read_again_are_refused(root, monkeypatch):
    [info] = hl.runs(root)
    monkeypatch.setattr(annotations, "_MAX_BYTES", 2000)
    before = annotate(info.directory, {"a": ("good", "x" * 1500)})
    with pytest.raises(hl.HooklineError, match="Shorten notes"):
        annotate(info.directory, {"b": (None, "x" * 1500)})
    assert read_annotations(info.directory) == (before, "")


def test_concurrent_annotations_are_all_kept(root):
    [info] = hl.runs(root)
    threads = [threading.Thread(target=annotate, args=(info.directory, {f"s{i}": ("good", None)})) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_annotations(info.directory)[0]) == 12


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"samples": 3}', b'{"samples": {"a": {"label": 3}}}'])
def test_damaged_annotations_are_reported_and_not_overwritten(root, content):
    [info] = hl.runs(root)
    (info.directory / ANNOTATIONS_FILE).write_bytes(content)
    assert "cannot be read" in read_annotations(info.directory)[1]
    assert ids(hl.runs(root), label="any") == []
    with pytest.raises(hl.ConfigError, match="Remove the file"):
        annotate(info.directory, {"a": ("good", None)})
    assert (info.directory / ANNOTATIONS_FILE).read_bytes() == content


@pytest.mark.parametrize("change", [("best", None), (None, "x" * 10_001), (None, "\0")])
def test_annotation_that_is_not_accepted_changes_nothing(root, change):
    [info] = hl.runs(root)
    with pytest.raises(hl.OptionError):
        annotate(info.directory, {"a": ("good", None), "b": change})
    assert read_annotations(info.directory) == ({}, "")


def test_export_for_sft_has_chats_as_messages_and_leaves_out_bad_samples(root):
    runs = annotated(root, two="bad")
    assert runs.export_samples("sft", order="-reward") == [
        {"prompt": "a?", "completion": "one"},
        {"prompt": "b?", "completion": "same"},
        {"prompt": "b?", "completion": "other"},
        {"messages": [{"role": "user", "content": "c?"}, {"role": "tool", "content": "r"}, *chat("three")]},
    ]


def test_export_of_preferences_pairs_the_best_with_the_worst_of_a_group(root):
    assert hl.runs(root).export_samples("preference") == [{"prompt": "a?", "chosen": "one", "rejected": "two"}]


def test_export_of_preferences_prefers_annotations_to_rewards(root):
    runs = annotated(root, two="good", one="bad", same="good", other="bad")
    assert runs.export_samples("preference") == [
        {"prompt": "a?", "chosen": "two", "rejected": "one"},
        {"prompt": "b?", "chosen": "same", "rejected": "other"},
    ]
    with pytest.raises(hl.OptionError, match="sft"):
        runs.export_samples("stf")


def test_samples_are_exported_on_the_command_line(root, tmp_path):
    from typer.testing import CliRunner

    from hookline.cli.app import app

    file = tmp_path / "pairs.jsonl"
    command = ["samples", "export", "samples", "--root", str(root), "-o", str(file), "--format", "preference"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"prompt": "a?", "chosen": "one", "rejected": "two"}
    ]
    assert CliRunner().invoke(app, command).exit_code == 2  # the file exists
    assert json.loads(CliRunner().invoke(app, [*command, "--force", "--json"]).stdout)["rows"] == 1
    listed = CliRunner().invoke(app, [*command[:5], "-o", "-", "--text", "THREE"])
    assert [list(json.loads(line)) for line in listed.stdout.splitlines()] == [["messages"]]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--label", "good"], ["one"]),
        (["--lesson", "none"], []),
        (["--axis", "eval"], []),
        (["--reward", "x", "--min-reward", "0.5"], ["two"]),
        (["--max-reward", "0.4"], ["two"]),
        (["--first-step", "2"], []),
        (["--last-step", "0", "--limit", "1"], ["one"]),
    ],
    ids=str,
)
def test_samples_are_selected_on_the_command_line(root, options, found):
    from typer.testing import CliRunner

    from hookline.cli.app import app

    annotated(root, one="good")
    result = CliRunner().invoke(app, ["samples", "export", "samples", "--root", str(root), "-o", "-", *options])
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["completion"] for line in result.stdout.splitlines()] == found
