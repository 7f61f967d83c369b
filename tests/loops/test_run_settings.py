"""`run.config`, `run.notes` and `run.summary`: changes to an open run are recorded at once."""

import argparse
import copy
import json
import pickle
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._record.records import Event
from hookline.cli import app


@dataclass
class Settings:
    lr: float = 0.1

    def double(self):
        return 2 * self.lr


def facts(run):
    return json.loads((run.dir / "run.json").read_text())


def test_config_changes_while_the_run_is_open_are_recorded_with_when_they_came():
    with hl.run(config={"lr": 0.1, "old": 1, 3: "three"}, summary=False) as run:
        assert (run.config.lr, run.config["lr"], run.config[3]) == (0.1, 0.1, "three")
        for _ in run.steps(2):
            pass
        run.config.update(argparse.Namespace(gpus=8), seed=1)
        run.config["lr"] = 0.2
        run.config.depth = 4
        del run.config["old"]
        assert facts(run)["config"] == {"lr": 0.2, "3": "three", "gpus": 8, "seed": 1, "depth": 4}
    events = [record for record in hl.read(run.dir) if isinstance(record, Event) and record.name == "hyperparameters"]
    assert [(event.step, event.data["values"]) for event in events] == [
        (2, {"gpus": 8, "seed": 1}),
        (2, {"lr": 0.2}),
        (2, {"depth": 4}),
    ]
    assert run.ctx.run_config is run.config


@pytest.mark.parametrize("given", [None, {}, argparse.Namespace(), SimpleNamespace()])
def test_config_that_is_open_takes_settings_before_and_after_the_run_began(given):
    run = hl.run(config=given, summary=False)
    run.config.update({"lr": 0.1})
    with run:
        run.config |= {"depth": 2}
        run.config.setdefault("lr", 5)
    assert facts(run)["config"] == {"lr": 0.1, "depth": 2}
    with pytest.raises(AttributeError, match="There is no 'rate'; there is: lr, depth"):
        run.config.rate  # noqa: B018


def test_config_that_is_an_object_stays_itself_and_takes_more_settings_beside_it():
    settings = Settings()
    run = hl.run(config=settings, summary=False)
    run.update_config(gpus=8)
    with run:
        run.update_config({"seed": 1})
        assert run.config is settings
        assert run.ctx.run_config.double() == 0.2
    assert facts(run)["config"] == {"lr": 0.1, "gpus": 8, "seed": 1}


def test_config_copies_are_plain_dicts_that_record_nothing():
    with hl.run(config={"nested": {"lr": 0.1}}, summary=False) as run:
        for made in (copy.deepcopy(run.config), pickle.loads(pickle.dumps(run.config)), run.config.copy()):
            assert type(made) is dict
            made["more"] = 1
        copy.deepcopy(run.config)["nested"]["lr"] = 0.2
    assert (run.config, facts(run)["config"]) == ({"nested": {"lr": 0.1}}, {"nested": {"lr": 0.1}})


def test_summary_and_notes_are_recorded_at_once_and_found_by_store_and_command():
    with hl.run("best", notes="First try.", summary=False) as run:
        run.summary["best"] = 0.9
        run.summary.update(worst=float("nan"), gone=1)
        run.summary.pop("gone")
        assert facts(run)["summary"] == {"best": 0.9, "worst": "NaN"}
        run.notes = "Better than\nexpected."
    run.summary["after"] = 3
    info = hl.runs("runs").latest()
    assert (info.notes, info.summary["best"], info.summary["after"]) == ("Better than\nexpected.", 0.9, 3)
    assert info.summary["worst"] != info.summary["worst"]
    reported = hl.runs("runs").sql("SELECT notes, summary ->> '$.best' AS best FROM runs").rows()
    assert reported == [{"notes": "Better than\nexpected.", "best": "0.9"}]
    shown = CliRunner().invoke(app, ["runs", "show", run.dir.name]).stdout
    assert "Better than" in shown
    assert "best: 0.9" in shown


def test_run_that_is_resumed_keeps_its_notes_and_its_summary():
    with hl.run("long", notes="Why.", summary=False) as first:
        first.summary["best"] = 0.9
        first.request_stop()
    with hl.run("long", resume=first.dir, summary=False) as second:
        assert (second.notes, second.summary) == ("Why.", {"best": 0.9})
        second.summary["best"] = 1.0
    with hl.run("long", resume=first.dir, notes="Why not.", summary=False):
        pass
    assert {"notes": "Why not.", "summary": {"best": 1.0}}.items() <= facts(first).items()


def test_latest_run_of_a_name_is_the_one_that_started_last_whatever_was_written_later():
    made = []
    for _ in range(2):
        with hl.run("twice", save=lambda directory: None, load=lambda directory: None, summary=False) as run:
            run.save_checkpoint()
        made.append(run)
    made[0].notes = "Written last."
    with hl.run("twice", resume="last", save=print, load=lambda directory: None, summary=False) as run:
        assert run.dir == made[1].dir


def test_notes_that_are_no_text_are_refused():
    with pytest.raises(OptionError, match=r"notes=3: give a string\."):
        hl.run(notes=3)


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"callback": []}, TypeError, "A run has no option 'callback'. Did you mean 'callbacks'?"),
        ({"config": 3}, OptionError, "config=3: give a dict, a dataclass, or another object with settings."),
        ({"config": "lr=1"}, OptionError, "config='lr=1': give a dict, a dataclass, or another object with settings."),
        ({"name": 3}, OptionError, "name=3: give a string."),
    ],
)
def test_run_with_an_unknown_or_wrong_option_is_refused(options, error, problem):
    with pytest.raises(error) as raised:
        hl.run(**options)
    assert str(raised.value) == problem
