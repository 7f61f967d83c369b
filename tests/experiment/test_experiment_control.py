"""Commands to an experiment while it runs: arms are stopped and skipped, repeats added."""

import pytest
from waiting import wait_until

import hookline as hl
from hookline._engine.errors import RefusedError


class Person:
    """Sends commands from within the first run, and lets it end when they were received."""

    def __init__(self, directory, *commands):
        self.directory, self.commands = directory, commands

    def train(self, ctx, run):
        if ctx.run_key == "one-r0" and self.commands:
            control, commands = hl.control(self.directory), self.commands
            self.commands = ()
            sent = [control.send(name, arguments) for name, arguments in commands]
            wait_until(lambda: all(control.outcome(each.id) is not None for each in sent))
            if any(name == "stop_arm" for name, _ in commands) and control.outcome(sent[0].id).state == "received":
                for _ in run.steps(10**9):
                    wait_until(lambda: run.command_flag[0] or run.stop_requested)
        return {"score": 1.0}


def experiment(tmp_path, *commands, **options):
    person = Person(tmp_path / "e", *commands)
    arms = [hl.Arm(name, {}, train=person.train) for name in ("one", "two")]
    return hl.Experiment("e", arms, output_dir=tmp_path / "e", **options)


def statuses(result):
    return {run.run_key: run.status for run in result.runs}


def answers(tmp_path):
    return [(each.command.name, each.state, each.result) for each in hl.control(tmp_path / "e").history()]


def test_skipped_arm_is_not_started_and_runs_after_a_restart(tmp_path):
    result = experiment(tmp_path, ("skip", {"arm": "two", "reason": "no use"}), repeats=2).run(report=False)
    skipped = {"one-r0": "completed", "one-r1": "completed", "two-r0": "skipped", "two-r1": "skipped"}
    assert (statuses(result), result.status) == (skipped, "completed")
    assert next(run for run in result.runs if run.run_key == "two-r0").error.endswith(": no use")
    assert answers(tmp_path) == [("skip", "applied", "Skipped 2 waiting runs of two.")]
    with pytest.raises(RefusedError, match="is over"):
        hl.control(tmp_path / "e").send("skip", {"arm": "one"})
    again = experiment(tmp_path, repeats=2).run(report=False)
    assert set(statuses(again).values()) == {"completed"}


def test_stopped_arm_ends_its_running_run_and_the_other_arm_continues(tmp_path):
    result = experiment(tmp_path, ("stop_arm", {"arm": "one"}), repeats=2).run(report=False)
    assert statuses(result) == {
        "one-r0": "completed",
        "one-r1": "skipped",
        "two-r0": "completed",
        "two-r1": "completed",
    }
    assert answers(tmp_path) == [("stop_arm", "applied", "Skipped 1 waiting run of one.")]
    (stop,) = hl.control(tmp_path / "e" / "one-r0").history()
    assert (stop.command.name, stop.state) == ("stop", "applied")


def test_added_repeats_are_run_with_seeds_of_their_own(tmp_path):
    ends = []
    log = hl.on("group_end", lambda ctx, name: ends.append(name))
    made = experiment(tmp_path, ("repeats", {"count": 3}), callbacks=[log])
    result = made.run(report=False)
    keys = [f"{arm}-r{repeat}" for arm in ("one", "two") for repeat in range(3)]
    assert (list(statuses(result)), set(statuses(result).values()), made.repeats) == (keys, {"completed"}, 3)
    assert [run.seed for run in result.runs] == [0, 1, 2] * 2
    assert (answers(tmp_path), sorted(ends)) == ([("repeats", "applied", "Added 4 runs.")], ["one", "two"])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("skip", {"arm": "tow"}, "two"),
        ("skip", {}, "there is no arm None"),
        ("skip", {"arm": "two", "why": "x"}, "no argument"),
        ("repeats", {"count": 0}, "give a whole number of 1"),
        ("repeats", {"count": True}, "give a whole number"),
        ("repeats", {"count": 10**6}, "give a whole number"),
        ("stop_arm", {"arm": "one", "reason": 7}, "give a text"),
    ],
)
def test_wrong_command_is_refused_and_changes_nothing(tmp_path, name, arguments, message):
    result = experiment(tmp_path, (name, arguments)).run(report=False)
    ((_, state, text),) = answers(tmp_path)
    assert (state, message in text, statuses(result)) == (
        "refused",
        True,
        {"one-r0": "completed", "two-r0": "completed"},
    )


def test_command_for_a_run_is_refused_by_an_experiment(tmp_path):
    refused = []

    def train(ctx, run):
        with pytest.raises(RefusedError, match="this is an experiment") as caught:
            hl.control(tmp_path / "e").stop()
        refused.append(caught.value)

    hl.Experiment("e", [hl.Arm("one", {}, train=train)], output_dir=tmp_path / "e").run(report=False)
    assert len(refused) == 1


def test_experiment_that_is_not_controlled_has_no_mailbox(tmp_path, monkeypatch):
    monkeypatch.setenv("HOOKLINE_CONTROL", "off")
    assert experiment(tmp_path).run(report=False).status == "completed"
    assert not (tmp_path / "e" / "control").exists()
