"""Learning rates set from outside: optimizers with groups and schedules, `Trainer`, resumes, and several processes."""

import json
import textwrap

import pytest
import steer_many
import torch
from fork_server import GLOO
from person import Person, commands_in

import hookline as hl
from hookline.integrations.torch import run as torch_run

STEPS = 8
DATA = [torch.full((2, 1), float(value)) for value in range(1, STEPS + 1)]


def model_and_optimizer(*, groups=1):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Linear(2, 1))
    parts = [model.parameters()] if groups == 1 else [part.parameters() for part in model]
    return model, torch.optim.AdamW([{"params": part, "lr": 0.1 * (at + 1)} for at, part in enumerate(parts)])


SCHEDULES = {
    "none": lambda optimizer: None,
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100),
    "sequential": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        ],
        milestones=[4],
    ),
}


def train(tmp_path, schedule, script, *, groups=1, **options):
    model, optimizer = model_and_optimizer(groups=groups)
    scheduler = SCHEDULES[schedule](optimizer)
    rates, losses = [], []
    given = {"root": tmp_path, "summary": False, "strict": True} | options
    with torch_run(model, optimizer, scheduler, name="rates", callbacks=[Person(script)], **given) as run:
        for batch in run.steps(DATA):
            rates.append([group["lr"] for group in optimizer.param_groups])
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
            losses.append(loss.item())
            run.log(loss=loss)
    return run, rates, losses


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_learning_rate_is_set_and_its_schedule_scaled(tmp_path, schedule):
    _, before, _ = train(tmp_path, schedule, {})
    halve = {3: lambda control: control.set("learning_rate", before[3][0] / 2)}
    run, rates, _ = train(tmp_path, schedule, halve)
    assert rates[:3] == before[:3]
    assert [rate for (rate,) in rates[3:]] == pytest.approx([rate / 2 for (rate,) in before[3:]])
    ((_, _, state, result),) = commands_in(run)
    assert (state, "The base rate of the schedule is scaled by 0.5" in result) == ("applied", schedule != "none")


def test_learning_rate_of_one_group_is_set_and_all_keep_their_ratio(tmp_path):
    script = {
        3: lambda control: control.set("learning_rate/1", 0.5),
        5: lambda control: control.set("learning_rate", 0.2),
    }
    _, rates, _ = train(tmp_path, "none", script, groups=2)
    assert rates == [[0.1, 0.2]] * 3 + [[0.1, 0.5]] * 2 + [[0.2, 1.0]] * 3


def test_learning_rate_is_not_offered_where_only_own_parameters_are(tmp_path):
    person = Person({3: lambda control: control.offer()["tunables"]})
    model, optimizer = model_and_optimizer()
    with torch_run(model, optimizer, callbacks=[person], root=tmp_path, summary=False, control="own") as run:
        for _ in run.steps(4):
            optimizer.step()
    assert person.sent == [{}]


def test_rate_of_zero_under_a_schedule_is_refused_until_it_rises(tmp_path, monkeypatch):
    zero = lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0, step - 3) / 10)  # noqa: E731
    monkeypatch.setitem(SCHEDULES, "zero", zero)
    run, _, _ = train(tmp_path, "zero", {2: lambda control: control.set("learning_rate", 0.5)})
    ((_, _, state, result),) = commands_in(run)
    assert (state, "cannot be scaled" in result) == ("refused", True)


@pytest.mark.parametrize("schedule", ["none", "cosine"])
def test_resume_from_before_a_set_rate_equals_the_steered_run(tmp_path, schedule):
    steered = {5: lambda control: control.set("learning_rate", 0.02)}
    _, _, expected = train(tmp_path, schedule, steered)

    def interrupt(control):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, schedule, steered | {3: lambda control: control.checkpoint(), 7: interrupt})
    _, _, losses = train(tmp_path, schedule, {}, resume="auto")
    assert losses == expected[3:]


def test_trainer_is_steered_and_resumed_like_an_uninterrupted_one(tmp_path):
    def fit(script, resume=None):
        model, _ = model_and_optimizer()
        config = hl.TrainerConfig(
            output_dir=tmp_path,
            epochs=1,
            learning_rate=0.1,
            schedule="cosine",
            summary=False,
            strict=True,
            resume=resume,
        )
        losses = []
        trainer = hl.Trainer(
            model,
            DATA,
            config=config,
            training_step=lambda model, batch: {"loss": model(batch).square().mean()},
            callbacks=[
                hl.on("step_end", lambda loop, step, batch, metrics: losses.append(float(metrics["loss"]))),
                Person(script),
            ],
        )
        trainer.fit()
        return trainer, losses

    def interrupt(control):
        raise KeyboardInterrupt

    steered = {
        2: lambda control: (control.pause(), control.unpause()),
        5: lambda control: (control.set("learning_rate", 0.02), control.checkpoint()),
    }
    _, plain = fit({})
    trainer, expected = fit(steered)
    assert expected[:5] == plain[:5] != expected[5:] != plain[5:]
    assert [state for _, _, state, _ in commands_in(trainer)] == ["applied"] * 4
    with pytest.raises(KeyboardInterrupt):
        fit(steered | {3: lambda control: control.checkpoint(), 5: steered[5], 7: interrupt})
    _, losses = fit({}, resume=str(sorted(trainer.dir.parent.glob("*/checkpoints/step-00000003"))[-1]))
    assert losses == expected[3:]


RANKS = """
    import json, random, sys
    import torch
    import torch.distributed as dist
    import hookline as hl
    from hookline.integrations.torch import run

    rank, place, begins, ends = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    dist.init_process_group("gloo", init_method=f"file://{place}/store-{begins}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    draw = random.Random(7)

    class Person(hl.Callback):
        def on_step_end(self, loop, step_idx):
            if loop.rank == 0 and self.sends:
                control = hl.control(loop)
                for _ in range(draw.randrange(4)):
                    kind = draw.choice(["rate", "clip", "checkpoint", "pause", "disable", "enable", "wrong"])
                    match kind:
                        case "rate": control.set("learning_rate", draw.choice([0.01, 0.02, 0.03]))
                        case "clip": control.set("clip", draw.random())
                        case "checkpoint": control.checkpoint()
                        case "pause": control.pause(), control.unpause()
                        case "disable": control.disable("seen")
                        case "enable": control.enable("seen")
                        case "wrong":
                            try:
                                control.set("clip", 7)
                            except hl.RefusedError:
                                pass
        sends = begins == "begin"

    class Seen(hl.Callback):
        steps = []
        def on_step_end(self, loop, step_idx):
            self.steps.append(loop.step)

    states = []
    options = {"resume": "auto"} if begins != "begin" else {}
    options |= {"callbacks": [Seen(), Person()], "root": place, "summary": False, "strict": True}
    with run(ddp, optimizer, name="ranks", **options) as loop:
        clip = loop.tunable("clip", 1.0, min=0, max=1)
        first = True
        for step in loop.steps(40):
            if not first:
                seen = loop.callbacks.find("seen")[0].disabled
                rate, weight = optimizer.param_groups[0]["lr"], float(model.weight.detach())
                states.append([loop.step, rate, clip.value, seen, weight])
            first = False
            loss = ddp(torch.ones(2, 1) * (step % 3)).square().mean() * clip.value
            loss.backward(); optimizer.step(); optimizer.zero_grad()
            loop.log(loss=loss.detach())
            if loop.step == ends:
                import os; print(json.dumps(states), flush=True); os._exit(9)
    print(json.dumps(states), flush=True)
    dist.destroy_process_group()
"""


@pytest.fixture
def two_ranks(torch_programs, tmp_path):
    def train(begins, ends=1000):
        arguments = ["-c", textwrap.dedent(RANKS)]
        started = [
            torch_programs.start(*arguments, str(rank), tmp_path, begins, str(ends), env=GLOO, merge=False)
            for rank in (0, 1)
        ]
        return [json.loads(program.communicate(120)[0]) for program in started]

    return train


def test_two_ranks_are_equal_after_every_step_through_commands_a_kill_and_a_resume(two_ranks, tmp_path):
    one, other = two_ranks("begin", ends=30)
    assert (one == other, len(one)) == (True, 30)
    resumed, same = two_ranks("again")
    assert resumed == same
    # From its last checkpoint on, the resumed run repeats what the killed one did.
    repeated = {step: rest for step, *rest in one}
    assert [repeated[step] for step, *_ in resumed if step in repeated] == [
        rest for step, *rest in resumed if step in repeated
    ]
    assert any(step in repeated for step, *_ in resumed)
    (directory,) = (tmp_path / "default").iterdir()
    outcomes = hl.control(directory).mailbox.outcomes()
    applied = [each.id for each in outcomes if each.state == "applied" and not each.again]
    assert len(applied) == len(set(applied)) > 10


WRONG = (
    *("different", "more than once", "without one end", "not in the journal"),
    *("steps not once in the journal", "settings not as set"),
)
"""What `steer_many` counts, and finds none of."""


@pytest.fixture
def steered(torch_programs, tmp_path):
    """Returns a function that sends commands to a training that is killed, and audits what became of them."""

    def steer(commands, seed=0, *, is_harmless=False):
        found = steer_many.steer(torch_programs, tmp_path, commands, seed, is_harmless=is_harmless)
        assert ({name: found[name] for name in WRONG}, found["damage"]) == (dict.fromkeys(WRONG, 0), [])
        assert (found["copied"], found["sessions"] > 1, found["compared"] > 10) == (True, True, True)
        return found

    return steer


def test_commands_through_two_ways_kills_and_a_new_server_are_applied_at_most_once_on_both_ranks(steered):
    found = steered(30)
    assert (found["sent"], found["applied"] > 5, found["settings checked"] > 10) == (30, True, True)


def test_training_that_is_only_saved_validated_and_paused_through_kills_equals_an_undisturbed_one(steered):
    found = steered(12, 1, is_harmless=True)
    assert (found["other than undisturbed"], found["applied"] > 2) == (0, True)
