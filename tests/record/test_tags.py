"""Tags of runs: what is accepted, where they are written down, and how runs are found by them."""

import json

import pytest

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._record.run_directory import MAX_TAG_LENGTH, MAX_TAGS, checked_tags


def test_tags_of_a_run_are_kept_once_and_runs_are_found_by_them(tmp_path):
    for name, tags in (("first", ["nightly", "lr=0.1", "nightly"]), ("second", ("other",)), ("third", ())):
        with hl.run(name, root=tmp_path, tags=tags, summary=False) as run:
            assert run.tags == tuple(dict.fromkeys(tags))
    found = hl.runs(tmp_path)
    assert {info.name: info.tags for info in found} == {
        "first": ("nightly", "lr=0.1"),
        "second": ("other",),
        "third": (),
    }
    assert [info.name for info in found.filter(tag="lr*")] == ["first"]
    query = "SELECT name FROM runs WHERE list_contains(tags, 'other')"
    assert found.sql(query).rows() == [{"name": "second"}]


def test_tags_of_arms_and_of_their_settings_stand_in_their_runs(tmp_path):
    arms = [hl.Arm("plain", {}), hl.Arm("tagged", {}, tags=["ablation"])]
    hl.Experiment("sweep", arms, train=lambda ctx, run: {"score": 1.0}, output_dir=tmp_path / "sweep").run(report=False)
    facts = {
        arm: json.loads((tmp_path / "sweep" / f"{arm}-r0" / "run.json").read_text()) for arm in ("plain", "tagged")
    }
    assert ("tags" in facts["plain"], facts["tagged"]["tags"]) == (False, ["ablation"])


def test_trainer_config_checks_its_tags():
    assert hl.TrainerConfig(epochs=1, tags=["a", "a"]).tags == ("a",)
    with pytest.raises(OptionError, match="tags"):
        hl.TrainerConfig(epochs=1, tags=[" a"])


@pytest.mark.parametrize(
    "given", ["nightly", 3, None, [1], [""], [" a"], ["a\n"], ["x" * (MAX_TAG_LENGTH + 1)], ["a\x1b[31m"], [None]]
)
def test_tags_that_are_not_short_texts_are_refused_before_anything_is_recorded(tmp_path, given):
    with pytest.raises(OptionError, match="tags"):
        hl.run("r", root=tmp_path, tags=given)
    assert list(tmp_path.iterdir()) == []


def test_too_many_tags_are_refused():
    with pytest.raises(OptionError, match=rf"{MAX_TAGS + 1} are given; at most {MAX_TAGS}"):
        checked_tags(map(str, range(MAX_TAGS + 1)))
