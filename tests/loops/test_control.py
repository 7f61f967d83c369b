"""Commands to a live run while it trains: effects, refusals, and their state after a resume."""

import json
import os
import stat
import time

import pytest
from person import Person, commands_in

import hookline as hl
from hookline._record import files
from hookline._record.commands import AT_ONCE, Mailbox, Outcome, RunControl, new_command

STEPS = 8


class Seen(hl.Callback):
    """Notes the steps that it sees."""

    def __init__(self):
        self.steps = []

    def on_step_end(self, loop, step_idx):
        self.steps.append(loop.step)


class Boost(hl.Callback):
    """Offers its own command, and observes all commands."""

    def __init__(self):
        self.seen = []
        self.factor = 1.0

    def boost(self, loop, factor=2.0):
        """Multiply the factor."""
        self.factor *= factor
        return f"factor {self.factor:g}"

    commands = {"boost": boost}  # noqa: RUF012 - as users write it

    def on_command(self, loop, command):
        self.seen.append(command.name)
        if command.arguments.get("reason") == "joking":
            command.refuse("Not funny.")
        if command.name == "set" and command.arguments["value"] == 9.0:
            command.arguments["value"] = 5.0


def train(tmp_path, script, *callbacks, steps=STEPS, **options):
    """Train a number towards 0, with the rate of a tunable; returns the run and the losses by step."""
    weight = [1.0]

    def save(directory):
        (directory / "weight.json").write_text(json.dumps(weight))

    def load(directory):
        weight[:] = json.loads((directory / "weight.json").read_text())

    losses = {}
    given = {"root": tmp_path, "summary": False, "strict": True, "save": save, "load": load} | options
    with hl.run("steered", callbacks=[*callbacks, Person(script)], **given) as run:
        rate = run.tunable("rate", 0.5, min=0.0, max=10)
        for _ in run.steps(steps):
            weight[0] -= weight[0] * rate.value * 0.1
            losses[run.step + 1] = weight[0]
            run.log(loss=weight[0])
    return run, losses


def test_commands_are_applied_at_the_end_of_the_step_and_recorded(tmp_path):
    script = {
        1: lambda control: control.set("rate", 2),
        2: lambda control: control.send("boost", {"factor": 3}),
        3: lambda control: control.checkpoint(),
        5: lambda control: control.stop("enough"),
    }
    boost = Boost()
    run, losses = train(tmp_path, script, boost)
    saved = run.dir / "checkpoints" / "step-00000003"
    assert commands_in(run) == [
        (1, "set", "applied", "rate: 0.5 -> 2.0."),
        (2, "boost", "applied", "factor 3"),
        (3, "checkpoint", "applied", f"Saved {saved} at step 3."),
        (5, "stop", "applied", "The training stops at step 5."),
    ]
    assert [each.state for each in hl.control(run).history()] == ["applied"] * 4
    assert (saved.is_dir(), run.step, run.stop_reason) == (
        True,
        5,
        f"enough ({hl.control(run).history()[0].command.author})",
    )
    assert losses[1] == 0.95
    assert losses[2] == pytest.approx(0.95 * 0.8)
    assert boost.seen == ["set", "boost", "checkpoint", "stop"]


def test_subscribers_change_and_refuse_commands(tmp_path):
    script = {1: lambda control: control.set("rate", 9.0), 2: lambda control: control.stop("joking")}
    run, _ = train(tmp_path, script, Boost())
    assert commands_in(run) == [(1, "set", "applied", "rate: 0.5 -> 5.0."), (2, "stop", "refused", "Not funny.")]
    assert run.step == STEPS


def test_subscribers_are_switched_scheduled_added_and_removed(tmp_path):
    seen = Seen()
    script = {
        1: lambda control: control.disable("seen"),
        3: lambda control: control.enable("seen"),
        4: lambda control: control.schedule("seen", 3),
        5: lambda control: control.add("timer", {"seconds": 1000.0}, every=2),
        6: lambda control: control.remove("timer"),
    }
    run, _ = train(tmp_path, script, seen)
    assert seen.steps == [1, 4, 6]
    assert [result for *_, result in commands_in(run)] == [
        *("seen is off.", "seen is on.", "seen runs every 3 steps.", "Added timer.", "Removed timer.")
    ]
    assert "timer" not in run.callbacks


def test_group_member_is_disabled_by_its_path(tmp_path):
    seen = Seen()
    group = hl.CallbackCollection([seen], name="watchers")
    train(tmp_path, {2: lambda control: control.disable("watchers/seen")}, group)
    assert seen.steps == [1, 2]


def test_pause_saves_and_waits_until_it_is_continued(tmp_path):
    script = {2: lambda control: (control.pause(), control.checkpoint(), control.unpause())}
    run, _ = train(tmp_path, script)
    saved = run.dir / "checkpoints" / "step-00000002"
    assert commands_in(run) == [
        (2, "pause", "applied", f"Paused at step 2. Saved {saved}."),
        (2, "continue", "applied", "The training continues at step 2."),
        (2, "checkpoint", "applied", f"Saved {saved} at step 2."),
    ]
    assert run.step == STEPS


def test_pause_ends_with_its_limit_and_with_a_stop(tmp_path):
    script = {
        2: lambda control: control.pause(limit=0.01),
        4: lambda control: (control.pause(), control.stop()),
    }
    run, _ = train(tmp_path, script)
    assert [name for _, name, _, _ in commands_in(run)] == ["pause", "pause", "stop"]
    assert (run.step, run.control.is_paused) == (4, False)


def test_undisturbed_and_saved_validated_and_paused_runs_have_equal_losses(tmp_path):
    everything = lambda control: (control.checkpoint(), control.validate(), control.pause(), control.unpause())  # noqa: E731
    _, expected = train(tmp_path, {})
    _, losses = train(tmp_path, dict.fromkeys(range(1, STEPS), everything))
    assert losses == expected


REFUSED = {
    "unknown parameter": (lambda control: control.set("rat", 1.0), "no parameter 'rat'. Did you mean 'rate'"),
    "out of bounds": (lambda control: control.set("rate", 11), "rate=11: give at least 0 and at most 10."),
    "not finite": (lambda control: control.set("rate", float("nan")), "nan is not a plain value"),
    "text for a number": (lambda control: control.set("rate", "high"), "give a finite number"),
    "truth value": (lambda control: control.set("rate", True), "give a finite number"),
    "unknown command": (lambda control: control.send("bost"), "There is no command 'bost'"),
    "unknown argument": (lambda control: control.send("stop", {"why": "x"}), "no argument 'why'; it takes reason"),
    "missing argument": (lambda control: control.send("set", {"name": "rate"}), "value is missing"),
    "wrong type": (
        lambda control: control.send("hooks.schedule", {"name": "x", "every": "2"}),
        "every='2': give a whole number.",
    ),
    "zero cadence": (lambda control: control.schedule("person", 0), "every=0; give at least 1"),
    "code": (lambda control: control.add("os:system"), "names code"),
    "module without a name": (lambda control: control.add("json.tool: x"), "names code"),
    "name of a module with a dash": (lambda control: control.add("my-module:Class"), "names code"),
    "path outside": (lambda control: control.add("csv_metrics", {"path": "../../x.csv"}), "outside of the run's"),
    "absolute path": (lambda control: control.add("csv_metrics", {"path": "/tmp/x.csv"}), "outside of the run's"),
    "code in an argument": (lambda control: control.add("alert", {"action": "os:system"}), "names code"),
    "endless pause": (lambda control: control.pause(limit=1e12), "limit=1000000000000.0"),
    "bad id": (lambda control: control.stop(id="../../x"), "give 8 to 64 letters"),
    "bad expiry": (lambda control: control.stop(expires=-1), "expires=-1"),
    "too long": (lambda control: control.stop("x" * 20_000), "longer than"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_command_is_refused_on_sending_and_changes_nothing(tmp_path, case):
    send, message = REFUSED[case]

    def attempt(control):
        with pytest.raises(hl.HooklineError) as refused:
            send(control)
        return str(refused.value)

    person = Person({2: attempt})
    run, _ = train(tmp_path, {}, person)
    assert message in person.sent[0]
    assert (commands_in(run), run.step) == ([], STEPS)


def post(run_dir, name, arguments=None, **fields):
    """Put a command into the inbox as another program would, without the checks of a sender."""
    command = new_command("stop")
    command.name, command.arguments = name, arguments or {}
    for field, value in fields.items():
        setattr(command, field, value)
    Mailbox(run_dir).post(command)
    return command.id


UNCHECKED = {
    "set": ({"name": "rate", "value": 99}, "rate=99: give at least 0 and at most 10."),
    "hooks.disable": ({"name": "nobody"}, "hooks.disable: nobody is not here. Known: person."),
    "hooks.add": ({"use": "os:system"}, "hooks.add: 'os:system' names code."),
    "boost": ({}, "There is no command 'boost'."),
    "../x": ({}, "'../x' is not the name of a command."),
    "continue": ({}, "The run is not paused."),
}


@pytest.mark.parametrize("name", UNCHECKED)
def test_wrong_command_is_refused_on_receiving_and_changes_nothing(tmp_path, name):
    arguments, message = UNCHECKED[name]
    run, _ = train(tmp_path, {2: lambda control: post(control.run_dir, name, arguments)})
    ((step, _, state, result),) = commands_in(run)
    assert (step, state, run.step) == (2, "refused", STEPS)
    assert result.startswith(message)


def test_command_under_another_author_is_refused(tmp_path):
    run, _ = train(tmp_path, {2: lambda control: post(control.run_dir, "stop", author="somebody-else")})
    ((_, _, state, result),) = commands_in(run)
    assert (state, "'somebody-else' is not" in result, run.step) == ("refused", True, STEPS)


def plant(kind):
    """Put something that is no command into the inbox."""

    def act(control):
        path = control.mailbox.inbox / "00000000000000000001-abcdefgh12.json"
        if kind == "link":
            secret = control.run_dir / "secret.json"
            secret.write_text("{}")
            path.symlink_to(secret)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        elif kind == "name that is no text":
            path.with_name("1-\udcff.json").write_bytes(b"{}")
        else:
            path.write_bytes({"binary": b"\xff\0", "huge": b"[" * 100_000, "list": b"[]"}[kind])
        control.mailbox.wake()

    return act


@pytest.mark.parametrize("kind", ["link", "pipe", "binary", "huge", "list", "directory", "name that is no text"])
def test_file_that_is_no_command_is_refused_once_and_removed(tmp_path, kind):
    run, _ = train(tmp_path, {2: plant(kind), 4: lambda control: control.mailbox.wake()})
    assert [(step, state) for step, _, state, _ in commands_in(run)] == [(2, "refused")]
    assert list(Mailbox(run.dir).inbox.iterdir()) == []


def test_mailbox_is_closed_to_other_users(tmp_path):
    run, _ = train(tmp_path, {})
    mailbox = Mailbox(run.dir)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (mailbox.directory, mailbox.inbox)] == [0o700, 0o700]


def test_many_commands_at_once_are_refused_by_the_sender_and_bounded_by_the_run(tmp_path):
    refused = []

    def flood(control):
        for _ in range(AT_ONCE + 20):
            try:
                control.set("rate", 1)
            except hl.RefusedError as error:
                refused.append(str(error))

    run, _ = train(tmp_path, {2: flood})
    assert (len(refused), refused[0].startswith("100 commands wait")) == (20, True), refused
    assert [(step, state) for step, _, state, _ in commands_in(run)] == [(2, "applied")] * AT_ONCE


def test_command_that_is_delivered_again_is_applied_once(tmp_path):
    def twice(control):
        path = post(control.run_dir, "boost", id="the-same-command")
        (file,) = control.mailbox.inbox.iterdir()
        copy = file.read_bytes()
        file.with_name("0-the-same-command.json").write_bytes(copy)
        return file, copy, path

    def later(control):
        file, copy, _ = person.sent[0]
        file.write_bytes(copy)
        control.mailbox.wake()
        return control.send("boost", id="the-same-command").result

    person, boost = Person({2: twice, 4: later}), Boost()
    run, _ = train(tmp_path, {}, boost, person)
    assert (boost.factor, person.sent[1]) == (2.0, "factor 2")
    assert len(commands_in(run)) == 1


def test_command_that_was_received_before_a_kill_is_not_applied_again(tmp_path):
    def killed(control):  # what a kill between the note and the change leaves behind
        post(control.run_dir, "boost", id="half-done-command")
        control.mailbox.write(Outcome(id="half-done-command", state="received"))
        raise KeyboardInterrupt

    boost = Boost()
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, {2: killed}, Boost())
    run, _ = train(tmp_path, {}, boost, resume="auto")
    assert (boost.factor, run.step) == (1.0, STEPS)


def test_command_that_a_killed_session_did_not_answer_fails_when_it_is_resumed(tmp_path):
    lost = new_command("validate", id="half-done")

    def killed(control):
        control.mailbox.write(Outcome(id=lost.id, state="received", command=lost))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, {2: killed}, Boost())
    run, _ = train(tmp_path, {}, Boost(), resume="auto")
    (outcome,) = [each for each in hl.control(run).history() if each.id == "half-done"]
    assert (outcome.state, outcome.result.startswith("The process ended before it was done.")) == ("failed", True)
    assert [(name, state) for _, name, state, _ in commands_in(run)] == [("validate", "failed")]


def test_expired_command_is_not_applied(tmp_path):
    now = time.time()
    run, _ = train(tmp_path, {2: lambda control: post(control.run_dir, "stop", time=now - 9, expires=now - 1)})
    assert commands_in(run) == [(2, "stop", "expired", "It expired before the run received it.")]
    assert run.step == STEPS


def test_command_that_could_not_be_answered_fails_when_the_run_ends(tmp_path):
    run, _ = train(tmp_path, {2: lambda control: control.validate()})
    ((_, _, state, result),) = commands_in(run)
    assert (state, "has to check run.validation_requested" in result) == ("failed", True)


@pytest.mark.parametrize("how", ["option", "environment"])
def test_run_that_is_not_controlled_says_so(tmp_path, monkeypatch, how):
    options = {"control": False} if how == "option" else {}
    if how == "environment":
        monkeypatch.setenv("HOOKLINE_CONTROL", "off")

    def attempt(control):
        with pytest.raises(hl.RefusedError, match="does not listen to commands: it was started with control=False"):
            control.stop()

    run, _ = train(tmp_path, {2: attempt}, **options)
    assert not (run.dir / "control").exists()


def test_run_that_is_over_says_so(tmp_path):
    run, _ = train(tmp_path, {})
    with pytest.raises(hl.RefusedError, match="is over: no process runs it"):
        RunControl(run.dir).stop()


def test_control_finds_runs_by_id_directory_and_latest(tmp_path):
    run, _ = train(tmp_path, {})
    found = [
        hl.control(reference, root=tmp_path).run_dir for reference in (run.dir.name, run.dir, str(run.dir), "latest")
    ]
    assert found == [run.dir] * 4
    with pytest.raises(hl.UnknownNameError, match="There is no run 'nothing'"):
        hl.control("nothing", root=tmp_path)


def test_offer_lists_parameters_subscribers_and_commands(tmp_path):
    person = Person({2: lambda control: control.offer()})
    train(tmp_path, {}, Boost(), person)
    (offer,) = person.sent
    assert offer["tunables"] == {"rate": {"type": "float", "value": 0.5, "min": 0.0, "max": 10}}
    assert offer["commands"] == {"boost": {"description": "Multiply the factor.", "arguments": {"factor": 2.0}}}
    assert [(each["name"], each["enabled"]) for each in offer["subscribers"]] == [
        ("boost", True),
        ("person", True),
        ("person_2", True),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", 1), "give a name"),
        (("rate", None), "give a number, a text"),
        (("rate", float("inf")), "give a finite number"),
        (("rate", 3, 5), "give at least 5"),
        (("mode", "a", None, None, ("b", "c")), "give one of 'b', 'c'"),
        (("mode", "a", 1), "bounds are numbers"),
    ],
)
def test_tunable_with_a_wrong_value_is_refused(tmp_path, arguments, message):
    name, value, least, most, choices = (*arguments, *[None] * (5 - len(arguments)))
    with hl.run(root=tmp_path, summary=False) as run, pytest.raises(hl.OptionError, match=message):
        run.tunable(name, value, min=least, max=most, choices=choices)


# Across a resume


def interrupted_and_resumed(tmp_path, script, **options):
    """A run that saves at step 3 and is interrupted after step 6, and one that resumes it."""

    def interrupt(control):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, {**script, 3: lambda control: control.checkpoint(), 6: interrupt}, Boost(), **options)
    return train(tmp_path, options.pop("again", {}), Boost(), resume="auto", **options)


SETTING = {
    1: lambda control: control.set("rate", 2.0),
    5: lambda control: (control.set("rate", 4.0), control.send("boost")),
}


def test_resume_from_before_a_setting_applies_it_again_at_the_same_step(tmp_path):
    _, expected = train(tmp_path, SETTING, Boost())
    run, losses = interrupted_and_resumed(tmp_path, SETTING)
    assert losses == {step: loss for step, loss in expected.items() if step > 3}
    assert commands_in(run)[-2:] == [(5, "set", "applied", "rate: 2.0 -> 4.0."), (5, "boost", "applied", "factor 2")]


def test_resume_drops_commands_behind_its_checkpoint_if_asked(tmp_path):
    _, expected = train(tmp_path, {1: SETTING[1]})
    _, losses = interrupted_and_resumed(tmp_path, SETTING, resume_commands="drop")
    assert losses == {step: loss for step, loss in expected.items() if step > 3}


def test_new_setting_replaces_one_that_was_to_be_applied_again(tmp_path):
    again = {4: lambda control: control.set("rate", 3.0)}
    _, expected = train(tmp_path, {1: SETTING[1]} | again)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, {**SETTING, 3: lambda control: control.checkpoint(), 6: lambda control: interrupt()}, Boost())
    _, losses = train(tmp_path, again, Boost(), resume="auto")
    assert losses == {step: loss for step, loss in expected.items() if step > 3}


def interrupt():
    raise KeyboardInterrupt


def test_resume_keeps_what_commands_changed_about_subscribers_before_its_checkpoint(tmp_path):
    script = {
        1: lambda control: (
            control.disable("boost"),
            control.add("timer", {"seconds": 900.0}),
            control.schedule("timer", 2),
        ),
    }
    run, _ = interrupted_and_resumed(tmp_path, script)
    found = {flat.path: flat.registration for flat in run.callbacks.flatten()}
    assert (found["boost"].disabled, repr(found["timer"].options.schedule)) == (True, "Every(2)")


def test_resume_applies_nothing_of_a_log_that_names_code(tmp_path, monkeypatch):
    imported = tmp_path / "imported"
    (tmp_path / "planted.py").write_text(f"open({str(imported)!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)

    def plant_log(control):
        for arguments in ({"use": "planted:Evil"}, {"use": "planted:a:b"}, {}):
            command = new_command("stop")
            command.name, command.arguments = "hooks.add", arguments
            control.mailbox.write(Outcome(id=command.id, state="applied", step=5, command=command))

    run, _ = interrupted_and_resumed(tmp_path, {5: plant_log})
    assert (imported.exists(), commands_in(run)[1:], run.step) == (False, [], STEPS)


@pytest.mark.parametrize(
    "content", ["pipe", "link", "endless", "list", "deep", '{"tunables": {"rate": 1}}', '{"time": "x"}']
)
def test_offer_of_a_hostile_directory_is_none(tmp_path, content):
    mailbox = Mailbox(tmp_path)
    mailbox.directory.mkdir()
    if content == "pipe":
        os.mkfifo(mailbox.offer_file)
        os.mkfifo(mailbox.log)
        os.mkfifo(mailbox.flag_file)
        with pytest.raises(OSError, match="No such device"):
            mailbox.wake()
    elif content in ("link", "endless"):
        (tmp_path / "secret.json").write_text('{"key": 1}')
        mailbox.offer_file.symlink_to("/dev/zero" if content == "endless" else tmp_path / "secret.json")
    else:
        mailbox.offer_file.write_text({"list": "[]", "deep": "[" * 100_000}.get(content, content))
    assert (mailbox.offer(), mailbox.outcomes()) == (None, [])


def test_mailbox_behind_a_link_is_not_used(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "other").mkdir()
    other = Mailbox(tmp_path / "mine")
    other.create().close()
    other.write_offer({"listens": True})
    (tmp_path / "other" / "control").symlink_to(other.directory)
    assert files.acquire_lock(tmp_path / "other" / "lock")  # as of a live run
    try:
        with pytest.raises(hl.HooklineError, match="does not listen"):
            RunControl(tmp_path / "other").stop()
    finally:
        files.release_lock(tmp_path / "other" / "lock")
    assert list(other.inbox.iterdir()) == []


def test_loop_that_only_logs_is_steered_too(tmp_path):
    run = hl.start("logged", root=tmp_path, summary=False, resume_commands="drop")
    rate = run.tunable("rate", 1.0)
    used = []
    for step in range(6):
        run.log(loss=rate.value)
        used.append(rate.value)
        if step == 2:
            hl.control(run).set("rate", 0.5)
    run.finish()
    assert used == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5]


def test_loop_that_numbers_its_rows_is_steered_too(tmp_path):
    with hl.run("numbered", root=tmp_path, summary=False) as run:
        for step in range(0, 60, 10):
            run.log(loss=1.0, step=step)
            if step == 20:
                hl.control(run).stop("enough")
            if run.stop_requested:
                break
    assert (step, run.stop_reason.startswith("enough")) == (30, True)
