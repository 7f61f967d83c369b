"""``hookline control``: commands to a live run of this process, and what is printed about them."""

import json

import pytest
from waiting import wait_until

import hookline as hl


class Typist(hl.Callback):
    """Runs the program at the ends of steps; the commands are applied at the boundary that follows."""

    def __init__(self, cli, lines):
        self.cli, self.lines, self.results = cli, lines, []

    def on_step_end(self, loop, step_idx):
        if step_idx < len(self.lines):
            self.results.append(self.cli("control", loop.dir.name, *self.lines[step_idx], "--wait", "0"))


def typed(cli, *lines, steps=8):
    """Train, type one line per step, and return the results with what became of the commands."""
    typist = Typist(cli, lines)
    with hl.run("typed", callbacks=[typist], summary=False, strict=True) as run:
        run.tunable("rate", 0.5, min=0.0, max=1.0)
        run.tunable("mode", "a", choices=["a", "1"])
        for _ in run.steps(steps):
            pass
    return run, typist.results, [(each.command.name, each.state, each.result) for each in hl.control(run).history()]


def test_control_of_a_run_that_has_ended_says_why_it_takes_no_commands(cli):
    run, _, _ = typed(cli, steps=1)
    assert cli("control", run.dir.name).stdout.startswith("The run does not listen to commands: it has ended.\n")


def test_control_sends_commands_with_their_arguments(cli):
    _, results, outcomes = typed(
        cli,
        ["set", "rate", "1e-1"],
        ["set", "mode", "1"],
        ["hooks", "add", "timer", "seconds=900", "every=2"],
        ["hooks", "schedule", "timer", "every=3", "start=1"],
        ["hooks", "remove", "timer"],
        ["pause", "0.01"],
        ["stop", "too", "slow", "--expires", "600"],
    )
    assert [result.exit_code for result in results] == [0] * 7
    assert all(result.stdout.startswith("sent: the run has not received it after 0 s") for result in results)
    assert [outcome[:2] for outcome in outcomes] == [
        ("set", "applied"),
        ("set", "applied"),
        ("hooks.add", "applied"),
        ("hooks.schedule", "applied"),
        ("hooks.remove", "applied"),
        ("pause", "applied"),
        ("stop", "applied"),
    ]
    assert [outcomes[index][2] for index in (0, 1, 3)] == [
        "rate: 0.5 -> 0.1.",
        "mode: 'a' -> '1'.",
        "timer runs every 3 steps after the first 1.",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["set", "rate"], "set takes a name and a value"),
        (["set", "rate", "7"], "rate=7: give at least 0 and at most 1."),
        (["set", "rte", "7"], "Did you mean 'rate'?"),
        (["hooks", "destroy", "x"], "hooks destroy: give one of enable, disable"),
        (["hooks", "add", "timer", "900"], "'900' is not argument=value."),
        (["dance"], "There is no command 'dance'."),
    ],
)
def test_control_refuses_what_cannot_be_sent(cli, line, message):
    _, (result,), outcomes = typed(cli, line, steps=2)
    assert (result.exit_code, outcomes) == (2, [])
    assert message in result.stderr


def test_control_of_an_experiment_skips_an_arm(cli, tmp_path):
    place, answers = tmp_path / "e", []

    def train(ctx, run):
        if ctx.run_key == "one-r0":
            answers.append(cli("control", place, "skip", "arm=two", "--wait", "0"))
            answers.append(cli("control", place, "stop"))
            wait_until(hl.control(place).history)

    arms = [hl.Arm(name, {}, train=train) for name in ("one", "two")]
    result = hl.Experiment("e", arms, output_dir=place).run(report=False)
    assert [run.status for run in result.runs] == ["completed", "skipped"]
    assert [answer.exit_code for answer in answers] == [0, 2]
    assert "this is an experiment" in answers[1].stderr
    assert "Skipped 1 waiting run of two" in cli("control", place).stdout


def test_control_of_a_run_that_is_over_says_so(cli):
    run, _, _ = typed(cli, steps=1)
    result = cli("control", run.dir.name, "stop")
    assert (result.exit_code, "is over: no process runs it" in result.stderr) == (2, True)


def test_control_without_a_command_shows_parameters_subscribers_and_history(cli):
    run, results, _ = typed(cli, ["set", "rate", "0.25"], [], steps=3)
    shown = results[1].stdout
    assert [word for word in ("rate", "0.25", "typist", "applied", "rate: 0.5 -> 0.25.") if word not in shown] == []
    document = json.loads(cli("control", run.dir.name, "--json").stdout)
    assert (document["offer"]["listens"], [each["state"] for each in document["commands"]]) == (False, ["applied"])
