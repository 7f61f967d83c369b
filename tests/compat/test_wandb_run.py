"""Runs of the drop-in: what `init` accepts, how a run continues and ends, and what is recorded of it."""

import argparse
import dataclasses
import json
import logging
import re
import types

import pytest
from compat.wandb_support import drop_in, last_run, rows

import hookline as hl

__all__ = ["drop_in"]


def test_run_is_listed_with_group_stage_tags_notes_config_and_summary(drop_in):
    run = drop_in.init(config={"lr": 0.1}, group="g", job_type="eval", tags=["a"], notes="n", name="first")
    run.log({"loss": 0.5})
    run.summary["best"] = 0.25
    run.finish()
    [info] = hl.runs("runs")
    assert (info.name, info.group, info.stage, info.tags, info.notes) == ("first", "g", "eval", ("a",), "n")
    assert (info.config, info.summary, info.metrics) == ({"lr": 0.1}, {"best": 0.25}, {"loss": 0.5})
    assert (info.status, info.step, len(hl.runs("runs").filter("stage = eval"))) == ("finished", 1, 1)


@pytest.mark.parametrize(
    "given",
    [
        {"lr": 0.1},
        argparse.Namespace(lr=0.1),
        types.SimpleNamespace(lr=0.1),
        dataclasses.make_dataclass("Settings", ["lr"])(0.1),
    ],
)
def test_init_config_of_any_kind_is_recorded(drop_in, given):
    with drop_in.init(config=given) as run:
        assert dict(run.config) == {"lr": 0.1}
    assert last_run().config == {"lr": 0.1}


@pytest.mark.parametrize("given", [3, [1], 0.5])
def test_init_config_that_is_no_settings_is_refused(drop_in, given):
    with pytest.raises(TypeError, match="config must be a dict"):
        drop_in.init(config=given)


def test_init_config_include_keys_keeps_only_those(drop_in):
    with drop_in.init(config={"a": 1, "b": 2}, config_include_keys=["b"]) as run:
        assert dict(run.config) == {"b": 2}
    with pytest.raises(drop_in.UsageError, match="at most only one"):
        drop_in.init(config={"a": 1}, config_include_keys=["a"], config_exclude_keys=["a"])


def test_init_reads_default_settings_from_a_file(drop_in, tmp_path):
    (tmp_path / "config-defaults.yaml").write_text("lr:\n  value: 0.5\nseed:\n  desc: x\n  value: 1\n")
    with drop_in.init(config={"lr": 0.1}) as run:
        assert dict(run.config) == {"lr": 0.1, "seed": 1}
    (tmp_path / "config-defaults.yaml").write_text("lr: 0.5\n")
    with pytest.raises(drop_in.errors.ConfigError, match="'lr' has no 'value'"):
        drop_in.init()


def test_init_records_in_the_directory_that_is_given(drop_in, tmp_path, monkeypatch):
    drop_in.init(dir="mine").finish()
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "variable"))
    drop_in.init().finish()
    monkeypatch.setenv("HOOKLINE_ROOT", str(tmp_path / "root"))
    drop_in.init(dir="mine").finish()
    found = [len(list((tmp_path / each).glob("*/*/run.json"))) for each in ("mine/runs", "variable/runs", "root")]
    assert found == [1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "onlin"}, "is not a mode of wandb. Did you mean 'online'"),
        ({"project": "a/b"}, "Invalid project name"),
        ({"id": "a/b"}, "Invalid run id"),
        ({"id": ".hidden"}, "Invalid run id"),
        ({"resume": "perhaps"}, "resume='perhaps': give one of allow"),
        ({"reinit": "sometimes"}, "reinit='sometimes': give one of"),
        ({"tags": ["x" * 65]}, "has 65 characters"),
        ({"settings": {"consol": "off"}}, "'consol' is not a setting of wandb. Did you mean 'console'"),
        ({"settings": 3}, "settings=3: give a wandb.Settings or a dict"),
        ({"fork_from": "a?_step=1"}, "does not copy the history"),
        ({"resume_from": "a"}, "is not a moment of a run"),
        ({"resume_from": "a?_step=1", "resume": "allow"}, "cannot be used together"),
        ({"sync_tensorboard": "perhaps"}, "sync_tensorboard='perhaps': give true or false"),
    ],
)
def test_init_with_a_wrong_argument_is_refused_and_records_nothing(drop_in, tmp_path, arguments, message):
    with pytest.raises(drop_in.UsageError, match=message):
        drop_in.init(**arguments)
    assert (drop_in.run, (tmp_path / "runs").exists()) == (None, False)


def test_init_accepts_every_argument_of_wandb(drop_in, capfd):
    given = {
        "force": True,
        "anonymous": "allow",
        "magic": True,
        "monitor_gym": True,
        "save_code": False,
        "reinit": None,
    }
    run = drop_in.init(entity="team", allow_val_change=True, tensorboard=False, **given)
    run.config.update({"lr": 1})
    run.config.lr = 2
    run.finish(quiet=True)
    assert (run.config.lr, run.path.split("/")[:2]) == (2, ["team", "p"])
    assert capfd.readouterr().err.count("is accepted, and has no effect") == 2


def test_init_sync_tensorboard_records_what_writers_write(drop_in, tmp_path):
    pytest.importorskip("hookline.compat.tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    run = drop_in.init(sync_tensorboard=True)
    writer = SummaryWriter(str(tmp_path / "logs"))
    for step in (10, 20):
        writer.add_scalar("losses/value", step / 2, step)
        run.log({"own": step})
    assert (run.summary["losses/value"], run.summary["own"]) == (10.0, 20)
    run.finish()
    writer.add_scalar("losses/value", 99.0, 30)
    writer.close()
    assert rows() == [
        {"_step": 0, "own": 10},
        {"_step": 1, "own": 20},
        {"_step": 10, "losses/value": 5.0},
        {"_step": 20, "losses/value": 10.0},
    ]
    assert {key: last_run().summary[key] for key in ("losses/value", "own")} == {"losses/value": 10.0, "own": 20}


def test_tensorboard_patch_before_init_and_after_records_what_writers_write(drop_in, tmp_path):
    pytest.importorskip("hookline.compat.tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    def written(step):
        with SummaryWriter(str(tmp_path / "logs")) as writer:
            writer.add_scalar("loss", 0.5, step)
        drop_in.finish()
        return rows()

    drop_in.tensorboard.patch(root_logdir=str(tmp_path / "logs"))
    drop_in.init()
    assert written(3) == [{"_step": 3, "loss": 0.5}]
    drop_in.tensorboard.unpatch()
    drop_in.init()
    drop_in.tensorboard.patch()
    assert written(4) == [{"_step": 4, "loss": 0.5}]
    drop_in.init()
    assert written(5) == []


def test_init_without_a_project_is_named_after_the_repository(drop_in, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_PROJECT")
    assert drop_in.init(name="a").project == "uncategorized"
    drop_in.finish()
    (tmp_path / "my-repo" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "my-repo")
    monkeypatch.setattr("sys.argv", ["train/run.py"])
    assert drop_in.init().project == "my-repo-train"


def test_init_resume_allow_continues_steps_summary_config_and_tags(drop_in):
    drop_in.init(id="x", config={"lr": 1, "old": 2}, tags=["first"], name="n", group="g", notes="about")
    drop_in.log({"loss": 3}, step=4)
    drop_in.run.summary["best"] = 0.5
    drop_in.define_metric("loss", summary="min")
    drop_in.finish()
    run = drop_in.init(id="x", resume="allow", config={"lr": 5})
    assert (run.resumed, run.step, run.name, run.group, run.notes, run.tags) == (True, 5, "n", "g", "about", ("first",))
    assert (dict(run.config), run.summary["best"], run.summary.get("loss")) == ({"lr": 5, "old": 2}, 0.5, {"min": 3})
    run.log({"loss": 7})
    run.finish()
    assert rows() == [{"loss": 3, "_step": 4}, {"loss": 7, "_step": 5}]
    assert (last_run().config, last_run().summary["loss"]) == ({"lr": 5, "old": 2}, {"min": 3})


def test_init_resume_with_tags_replaces_them(drop_in):
    drop_in.init(id="x", tags=["a", "b"]).finish()
    drop_in.init(id="x", resume="must", tags=["c"]).finish()
    assert last_run().tags == ["c"]


@pytest.mark.parametrize(
    ("resume", "exists", "resumed"), [("allow", False, False), ("never", False, False), ("must", True, True)]
)
def test_init_resume_modes_that_fit(drop_in, resume, exists, resumed):
    if exists:
        drop_in.init(id="x").finish()
    run = drop_in.init(id="x", resume=resume)
    assert (run.id, run.resumed) == ("x", resumed)


@pytest.mark.parametrize(
    ("resume", "exists", "message"), [("must", False, "does not exist"), ("never", True, "already exists")]
)
def test_init_resume_modes_that_do_not_fit_are_refused(drop_in, resume, exists, message):
    if exists:
        drop_in.init(id="x").finish()
    with pytest.raises(drop_in.UsageError, match=message):
        drop_in.init(id="x", resume=resume)


@pytest.mark.parametrize("resume", ["auto", True])
def test_init_resume_auto_continues_the_run_that_did_not_finish(drop_in, resume):
    first = drop_in.init(resume=resume)
    first.log({"a": 1})
    first.finish(exit_code=1)
    second = drop_in.init(resume=resume)
    assert (second.id, second.resumed, second.step) == (first.id, True, 1)
    second.finish()
    assert drop_in.init(resume=resume).id != first.id


def test_init_resume_from_withdraws_later_rows(drop_in):
    drop_in.init(id="x")
    for value in range(5):
        drop_in.log({"a": value})
    drop_in.finish()
    run = drop_in.init(resume_from="x?_step=1")
    assert (run.id, run.step, run.summary["a"]) == ("x", 2, 1)
    run.log({"a": 10})
    run.finish()
    assert [row["a"] for row in rows()] == [0, 1, 10]


def test_init_with_an_id_again_keeps_the_earlier_run(drop_in, tmp_path):
    for value in range(3):
        with drop_in.init(id="x") as run:
            run.log({"a": value})
    assert sorted(path.name for path in (tmp_path / "runs" / "p").iterdir()) == ["x", "x-2", "x-3"]
    assert (drop_in.Api().run("p/x").summary["a"], drop_in.Api().run("p/x-2").id) == (2, "x")


def test_init_while_a_run_is_active_cannot_resume_another(drop_in):
    drop_in.init(id="x")
    with pytest.raises(drop_in.Error, match="while another run is active"):
        drop_in.init(id="y", resume="must")


def test_init_in_a_notebook_finishes_the_active_run(drop_in, monkeypatch):
    first = drop_in.init()
    monkeypatch.setattr("hookline.compat.wandb.lifecycle.is_notebook", lambda: True)
    second = drop_in.init()
    assert (second is first, drop_in.run is second, first._is_finished) == (False, True, True)


def test_setup_settings_hold_for_later_runs_until_teardown(drop_in):
    drop_in.setup(drop_in.Settings(project="from-setup", run_group="g"))
    run = drop_in.init()
    assert (run.project, run.group) == ("p", "g")  # a variable wins over nothing that setup gives
    drop_in.teardown()
    assert (drop_in.run, drop_in.init().group) == (None, "")


@pytest.mark.parametrize(
    ("variables", "attribute", "value"),
    [
        ({"WANDB_RUN_ID": "abc"}, "id", "abc"),
        ({"WANDB_ENTITY": "team"}, "entity", "team"),
        ({"WANDB_MODE": "dryrun"}, "offline", True),
        ({"WANDB_DISABLED": "true"}, "disabled", True),
        ({"WANDB_TAGS": "a, b"}, "tags", ("a", "b")),
        ({"WANDB_NOTES": "n"}, "notes", "n"),
    ],
)
def test_variable_sets_what_init_leaves_out(drop_in, monkeypatch, variables, attribute, value):
    for name, each in variables.items():
        monkeypatch.setenv(name, each)
    assert getattr(drop_in.init(), attribute) == value


def test_variable_resume_continues_the_run_of_the_variable_id(drop_in, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "abc")
    monkeypatch.setenv("WANDB_RESUME", "allow")
    drop_in.init().finish()
    assert drop_in.init().resumed


def test_variable_with_a_wrong_value_is_named(drop_in, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "onlin")
    with pytest.raises(drop_in.UsageError, match="WANDB_MODE: mode='onlin'"):
        drop_in.init()


def test_variable_silent_prints_nothing(drop_in, monkeypatch, capfd):
    drop_in.init().finish()
    assert re.search("wandb: Recording .* View it with: hookline ui --root runs$", capfd.readouterr().err, re.MULTILINE)
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = drop_in.init()
    run.log({"a": 1}, step=5)
    run.log({"a": 1}, step=1)
    run.finish()
    assert capfd.readouterr().err == ""


def test_variable_quiet_prints_warnings_only(drop_in, monkeypatch, capfd):
    monkeypatch.setenv("WANDB_QUIET", "true")
    with drop_in.init() as run:
        run.log({"a": 1}, step=5)
        run.log({"a": 1}, step=1)
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("wandb: WARNING Step 1 is lower than the current step 5.")


def test_settings_are_read_back_and_unknown_ones_refused(drop_in):
    settings = drop_in.Settings(start_method="fork", _disable_stats=True, init_timeout=300, console="off")
    assert (settings.start_method, settings.x_disable_stats, settings["init_timeout"]) == ("fork", True, 300)
    assert (settings.mode, settings.summary_timeout, sorted(settings.keys())[0]) == ("online", None, "console")
    copy = settings.model_copy(update={"mode": "offline"})
    assert (copy.is_offline, copy == settings, copy.model_dump()["mode"]) == (True, False, "offline")
    with pytest.raises(drop_in.UsageError, match="'mod' is not a setting of wandb. Did you mean 'mode'"):
        drop_in.Settings(mod="offline")


def test_configure_gives_runs_options_of_hookline(drop_in, tmp_path):
    seen = []
    drop_in.configure(
        root=tmp_path / "elsewhere", callbacks=[hl.on("log", lambda loop, step, row: seen.append((step, row)))]
    )
    with drop_in.init() as run:
        run.log({"a": 1})
        run.log({"b": 2}, step=7)
    drop_in.configure(callbacks=())
    assert (seen, run.directory.parents[1]) == ([(0, {"a": 1}), (7, {"b": 2})], tmp_path / "elsewhere")
    with pytest.raises(drop_in.UsageError, match=r"configure\(project=...\): give options of hookline"):
        drop_in.configure(project="p")


def test_configure_sinks_delivery_redaction_and_control_are_those_of_every_run(drop_in):
    drop_in.configure(sinks=["csv"], delivery="thread", drain_seconds=20.0, redact="Alice", control=False)
    try:
        with drop_in.init(notes="Alice and Bob") as run:
            run.log({"a": 1})
    finally:
        drop_in.configure(sinks=(), redact=None, control=True)
    [info] = hl.runs("runs")
    assert "Alice" not in info.notes
    assert [path.name for path in run.directory.glob("*.csv")] == ["metrics.csv"]
    assert not (run.directory / "control").exists()


def test_name_tags_and_notes_that_change_are_recorded(drop_in):
    run = drop_in.init(tags=["a"])
    run.name, run.notes = "renamed", "later"
    run.tags += ("b",)
    run.tags = ("x" * 65,)
    run.finish()
    found = last_run()
    assert (found.name, found.notes, found.tags) == ("renamed", "later", ["a", "b"])
    with pytest.raises(drop_in.UsageError, match="is finished"):
        run.name = "again"


def test_run_without_a_name_gets_words(drop_in):
    run = drop_in.init()
    assert run.id.endswith(run.name)
    assert len(run.name.split("-")) == 3


def test_config_keys_of_a_sweep_are_locked(drop_in, capfd):
    run = drop_in.init()
    run.config.update_locked({"lr": 1, "nested": {"a": 1}}, user="sweep")
    run.config.merge_locked({"nested": {"b": 2}}, user="sweep")
    run.config.lr = 5
    run.config.update({"lr": 6, "free": 1})
    assert dict(run.config) == {"lr": 1, "nested": {"a": 1, "b": 2}, "free": 1}
    assert "Config item 'lr' was locked by 'sweep' (ignored update)." in capfd.readouterr().err


def test_config_update_that_is_refused_changes_nothing(drop_in):
    run = drop_in.init(config={"a": 1})
    with pytest.raises(drop_in.errors.ConfigError, match='change value of key "a" from 1 to 2'):
        run.config.update({"new": 1, "a": 2})
    assert dict(run.config) == {"a": 1}


def test_config_static_cannot_be_changed(drop_in):
    static = drop_in.init(config={"a": 1}).config_static
    assert (static["a"], static.a, str(static), list(static.keys())) == (1, 1, "{'a': 1}", ["a"])
    for change in (lambda: setattr(static, "a", 2), lambda: static.__setitem__("a", 2)):
        with pytest.raises(AttributeError, match="readonly"):
            change()


def test_config_setdefault_and_media_in_it(drop_in):
    run = drop_in.init()
    assert (run.config.setdefault("a", 1), run.config.setdefault("a", 2), run.config.values()) == (1, 1, [1])
    run.config.persist()
    with pytest.raises(TypeError, match="WBValue objects cannot be added"):
        run.config["image"] = drop_in.Html("x")


def test_config_after_finish_cannot_be_changed(drop_in):
    run = drop_in.init(config={"a": 1})
    run.finish()
    assert run.config.a == 1
    with pytest.raises(drop_in.UsageError, match="its config cannot be changed"):
        run.config["b"] = 2
    with pytest.raises(drop_in.UsageError, match="its summary cannot be changed"):
        run.summary["b"] = 2


def test_summary_values_nest_can_be_deleted_and_outlive_the_run(drop_in):
    import numpy as np

    run = drop_in.init()
    run.summary.update({"u": {"v": 1}, "gone": 1})
    run.summary["u"]["w"] = 3
    run.summary.best = 5
    run.summary["big"] = np.arange(100.0)
    del run.summary["gone"]
    run.finish()
    found = last_run().summary
    assert (found["u"], found["best"], "gone" in found) == ({"v": 1, "w": 3}, 5, False)
    assert (found["big"]["mean"], found["big"]["_type"]) == (49.5, "numpy.ndarray")
    assert (dict(run.summary)["best"], len(run.summary), run.summary["u"].get("v")) == (5, 3, 1)


def test_definition_after_rows_counts_them_as_well(drop_in):
    run = drop_in.init()
    for value in (3, 1, float("nan"), 2):
        run.log({"a": value})
    run.define_metric("a", summary="min,mean,first", hidden=True)
    assert run.summary["a"]._as_dict() == {"min": 1, "mean": 2, "first": 3}
    run.define_metric("a", summary="max", overwrite=True)
    run.finish()
    assert (last_run().summary["a"], hl.runs("runs")[0].summary) == ({"max": 3}, {"a.max": 3})


def test_definition_of_the_best_value_follows_its_goal(drop_in):
    run = drop_in.init()
    run.define_metric("loss", summary="best", goal="minimize")
    run.define_metric("acc", summary="best", goal="maximize")
    for loss, acc in ((3, 0.1), (1, 0.5), (2, 0.25)):
        run.log({"loss": loss, "acc": acc})
    assert (run.summary["loss"]["best"], run.summary["acc"]["best"]) == (1, 0.5)


def test_definition_with_a_longer_pattern_wins(drop_in):
    run = drop_in.init()
    run.define_metric("val/*", step_metric="epoch", step_sync=True)
    metric = run.define_metric("*", step_metric=run.define_metric("step"))
    run.log({"step": 1, "epoch": 10})
    run.log({"val/loss": 2})
    run.log({"loss": 3})
    run.finish()
    assert rows()[1:] == [{"val/loss": 2, "epoch": 10, "_step": 1}, {"loss": 3, "step": 1, "_step": 2}]
    assert (metric.name, metric.step_metric, metric.step_sync) == ("*", "step", True)


def test_failed_log_leaves_the_open_row_as_it_was(drop_in):
    run = drop_in.init()
    run.log({"a": 1}, commit=False)
    for data, error in (({"b": object()}, TypeError), ({"b": 1}, TypeError)):
        with pytest.raises(error):
            run.log(data, step=1.5)
    run.log({"c": 2}, sync=True)
    run.finish()
    assert rows() == [{"a": 1, "c": 2, "_step": 0}]


def test_row_on_commit_without_values_has_its_step(drop_in):
    run = drop_in.init()
    run.log({})
    run.log({"a": 1}, commit=True)
    run.finish()
    assert rows() == [{"_step": 0}, {"a": 1, "_step": 1}]


def test_finish_with_an_exit_code_fails_the_run(drop_in):
    with pytest.raises(RuntimeError), drop_in.init():
        raise RuntimeError("diverged")
    drop_in.init().finish(3)
    states = [(run.state, run._info.message) for run in drop_in.Api().runs("p")]
    assert states[0] == ("failed", "RuntimeError: diverged")
    assert states[1][0] == "failed"
    assert "exit code 3" in states[1][1]


def test_alert_is_recorded_once_in_its_waiting_time(drop_in):
    from datetime import timedelta

    run = drop_in.init()
    for wait in (60, timedelta(seconds=60), None):
        run.alert("low", "accuracy is low", level="WARN", wait_duration=wait)
    run.alert(title="other", text="", level=drop_in.AlertLevel.ERROR)
    with pytest.raises(TypeError, match="wait_duration must be"):
        run.alert("low", "x", wait_duration="a minute")
    run.finish()
    found = [json.loads(row["data"]) for row in hl.runs("runs").events("alert").rows()]
    assert [(each["rule"], each["severity"], each["message"]) for each in found] == [
        ("low", "warning", "low: accuracy is low"),
        ("other", "error", "other"),
    ]


def test_run_says_what_it_is(drop_in):
    run = drop_in.init(id="x", name="n<b>")
    assert (run.project_name(), run.start_time > 0, run.starting_step, run.status().sync_items_total) == (
        "p",
        True,
        0,
        0,
    )
    assert (run.url, run.get_url() == run.url, run.sweep_url) == (run.directory.as_uri(), True, None)
    assert run.project_url == run.directory.parent.as_uri()
    assert ("n&lt;b&gt;" in run.to_html(height=1, hidden=True), run.display()) == (True, False)
    assert (run.settings.run_id, run.sync_dir, repr(run)) == (
        "x",
        str(run.directory),
        "<hookline.compat.wandb.Run p/x>",
    )
    run.pin_config_keys(keys=["a"])
    run.mark_preempting()
    run.write_logs("a line")
    run._label(code="transformers_trainer")
    run.join()
    assert hl.runs("runs").logs().rows()[0]["message"] == "a line"


def test_disabled_run_accepts_everything_and_records_nothing(drop_in, tmp_path):
    run = drop_in.init(mode="disabled", config={"a": 1})
    assert drop_in.run is run
    run.log({"a": 1}, step=5)
    run.define_metric("a")
    run.watch(None)
    run.unwatch()
    run.alert("t", "x")
    run.mark_preempting()
    found = [
        run.save("x"),
        run.use_artifact("x"),
        run.use_model("x"),
        run.log_code(),
        run.restore("x"),
        run.url,
        run.dir,
    ]
    assert found == [False, None, "", None, None, None, "/"]
    assert run.log_artifact("x").wait().name is not None
    assert (run.link_model("x", "y"), run.link_artifact(None, "y"), run.summary["a"]) == (None, None, 1)
    with pytest.raises(drop_in.UsageError, match="has no directory"):
        _ = run.directory
    run.finish()
    assert (drop_in.run, (tmp_path / "runs").exists()) == (None, False)


def test_functions_that_need_no_run_do_nothing_or_answer(drop_in, capfd):
    assert (drop_in.login(key="0" * 40, relogin=True, host="x", force=True, timeout=1), drop_in.require("core")) == (
        True,
        None,
    )
    drop_in.ensure_configured()
    drop_in.require(experiment="service")
    drop_in.init()
    assert drop_in.login(verify=False, referrer="x", prompt=False, anonymous="never") is True
    assert "Calling wandb.login() after wandb.init() has no effect." in capfd.readouterr().err


def test_messages_are_printed_with_a_prefix_and_once_if_asked(drop_in, capfd, caplog):
    drop_in.termlog("hello\nworld")
    drop_in.termwarn("careful", repeat=False)
    drop_in.termwarn("careful", repeat=False)
    drop_in.termerror(string="wrong", newline=False, prefix=False)
    assert capfd.readouterr().err == "wandb: hello\nwandb: world\nwandb: WARNING careful\nERROR wrong"
    drop_in.termsetup(drop_in.Settings(silent=True), logger=None)
    with caplog.at_level(logging.WARNING, logger="hookline"):
        drop_in.termwarn("to the log")
    drop_in.termsetup(drop_in.Settings())
    assert (capfd.readouterr().err, caplog.messages) == ("", ["WARNING to the log"])


def test_stop_command_interrupts_the_program_at_the_next_row(drop_in):
    with pytest.raises(KeyboardInterrupt), drop_in.init() as run:
        hl.control(run.directory).stop("enough")
        for value in range(1_000_000):
            run.log({"a": value})
    [info] = hl.runs("runs")
    assert (info.status, "enough" in info.message) == ("stopped", True)


def test_stop_function_of_settings_is_called_instead(drop_in):
    stopped = []
    run = drop_in.init(settings=drop_in.Settings(stop_fn=lambda: stopped.append(drop_in.run.step)))
    hl.control(run.directory).stop()
    run.log({"a": 1})
    assert stopped == [1]


def test_checkpoint_command_is_refused_with_a_reason(drop_in):
    run = drop_in.init()
    with pytest.raises(hl.RefusedError, match="A script that logs to wandb does that by itself"):
        hl.control(run.directory).checkpoint()
