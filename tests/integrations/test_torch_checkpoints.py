"""Monitored checkpoints in torch loops: which weights they hold, and how several processes agree on them."""

import json
from pathlib import Path

import pytest

import hookline as hl
from hookline._record.records import Metrics
from hookline.callbacks import CheckpointCallback, EarlyStoppingCallback

torch = pytest.importorskip("torch")

from hookline.integrations.torch import run  # noqa: E402

torch.set_num_threads(1)

SCRIPT = Path(__file__).parent / "scripts" / "ddp_checkpoints.py"


@pytest.fixture(scope="module")
def together(tmp_path_factory, torch_programs):
    """What two processes found that train with DDP."""
    root = tmp_path_factory.mktemp("ddp")
    torch_programs.run_ranks(2, SCRIPT, "{rank}", root)
    return [json.loads((root / f"found-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("the epoch ends at the validated step", {"steps": [4, 6], "state": "completed"}),
        ("it stops at the validated step", {"steps": [4], "state": "stopped"}),
        ("only the best is kept", {"steps": [4], "state": "completed"}),
        ("by steps, stopped at the validated step", {"steps": [4], "state": "stopped"}),
    ],
)
def test_ddp_checkpoints_monitored_on_rank_zero_only_are_saved_and_kept_alike_on_both(together, scenario, expected):
    best = ["step-00000004", 0.5]
    whole = expected | {"same": [True] * len(expected["steps"]), "best": best}
    assert [found[scenario] for found in together] == [whole, whole]
    assert [found["world_size"] for found in together] == [2, 2]


def test_ddp_validation_requested_on_one_rank_is_agreed_on_and_done_once(together):
    assert [found["asked"] for found in together] == [[False, False, True, False, False]] * 2


def test_ddp_checkpoint_is_complete_when_each_rank_has_synced_its_journal(together):
    assert [found["synced"] for found in together] == [[["main"], ["main"]], [["rank1"], ["rank1"]]]


def test_ddp_checkpoint_is_refused_on_both_ranks_where_one_cannot_sync_its_journal(together):
    assert ["Input/output error" in found["fails on one"] for found in together] == [True, True]


def test_ddp_checkpoint_of_an_evaluation_before_the_update_holds_the_evaluated_weights(together):
    whole = {"steps": [4, 6], "same": [True, True], "best": ["step-00000004", 0.5], "state": "completed"}
    assert [found["validated before the update"] for found in together] == [whole, whole]


def parts():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def batches(count=12):
    return list(torch.randn(count, 2, 4, generator=torch.Generator().manual_seed(1)))


def evaluate(loop, model):
    """Validate with a loss that depends on the weights and on a random number, and return the weights."""
    with loop.validate() as validation, torch.no_grad():
        validation.log(loss=sum(float(each.abs().sum()) for each in model.parameters()) + float(torch.rand(())))
    return [each.tolist() for each in model.parameters()]


def train(root, *, before, accumulation=1, until=None, resume=None):
    """Train on twelve batches, and evaluate in every third body, before its update or after it."""
    model, optimizer = parts()
    seen = []
    early = EarlyStoppingCallback(patience=100)
    callbacks = [CheckpointCallback(monitor="val/loss", save_top_k=-1), early]
    options = {"root": root, "resume": resume, "summary": False, "strict": True, "callbacks": callbacks}
    evaluated = {}
    with run(model, optimizer, name="evaluated", accumulation=accumulation, **options) as loop:
        for index, batch in loop.steps(list(enumerate(batches()))):
            if before and index % 3 == 0:
                evaluated[loop.step] = evaluate(loop, model)
            model(batch).square().mean().backward()
            seen.append([float(each.grad.sum()) for each in model.parameters()])
            if (index + 1) % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
                if not before and index % 3 == 2:
                    evaluated[loop.step + 1] = evaluate(loop, model)
            if until is not None and loop.step + 1 == until:
                loop.request_stop("for now")
    return loop, evaluated, seen, early.state_dict()


def saved_weights(loop):
    paths = sorted(loop.dir.glob("checkpoints/step-*"))
    saved = {int(path.name.removeprefix("step-")): torch.load(path / "model.pt") for path in paths}
    return {step: [each.tolist() for each in weights.values()] for step, weights in saved.items()}


def evaluations(loop):
    return [row.step for row in hl.read(loop.dir) if isinstance(row, Metrics) and row.axis == "eval"]


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("before", [True, False])
def test_run_evaluation_belongs_to_the_weights_it_measured_and_the_checkpoint_holds_them(
    before, accumulation, tmp_path
):
    loop, evaluated, _, _ = train(tmp_path, before=before, accumulation=accumulation)
    bodies = range(0, 12, 3) if before else range(3, 13, 3)
    steps = [body // accumulation for body in bodies]
    assert evaluations(loop) == steps
    kept = saved_weights(loop)
    assert {step: kept[step] for step in steps} == evaluated


@pytest.mark.parametrize("accumulation", [1, 3])
def test_run_resumed_from_a_checkpoint_of_an_evaluation_before_the_update_is_exact(accumulation, tmp_path):
    straight, _, gradients, early = train(tmp_path / "straight", before=True, accumulation=accumulation)
    stopped, *_ = train(tmp_path / "halved", before=True, accumulation=accumulation, until=8 // accumulation)
    path = stopped.dir / "checkpoints" / f"step-{6 // accumulation:08d}"
    resumed, _, rest, early_resumed = train(tmp_path / "halved", before=True, accumulation=accumulation, resume=path)
    assert rest == gradients[6:]
    assert early_resumed == early
    assert evaluations(resumed) == evaluations(straight)


def test_run_second_update_after_a_monitored_evaluation_is_refused(tmp_path):
    model, optimizer = parts()
    rule = CheckpointCallback(monitor="val/loss")
    with (
        pytest.raises(hl.OptionError, match=r"step 1 updates the weights again.*Evaluate after the last update"),
        run(model, optimizer, root=tmp_path, callbacks=[rule], summary=False) as loop,
    ):
        for batch in loop.steps(batches(1)):
            model(batch).sum().backward()
            optimizer.step()
            with loop.validate() as validation:
                validation.log(loss=1.0)
            optimizer.step()


@pytest.mark.parametrize(("before_update", "step"), [(None, 1), (False, 1), (True, 0)])
def test_bare_run_assumes_the_update_is_done_unless_stated_otherwise(before_update, step, tmp_path):
    weights = {"saved": None, "now": 0}
    rule = CheckpointCallback(monitor="val/loss")
    options = {"root": tmp_path, "callbacks": [rule], "summary": False}

    def save(directory):
        (directory / "weights").write_text(str(weights["now"]))

    with hl.run(save=save, load=lambda directory: None, **options) as loop:
        for _ in loop.steps(1):
            if before_update:
                with loop.validate(before_update=before_update) as validation:
                    validation.log(loss=1.0)
            weights["now"] += 1
            if not before_update:
                with loop.validate(before_update=before_update) as validation:
                    validation.log(loss=1.0)
    assert evaluations(loop) == [step]
    assert rule.best_path.name == f"step-{step:08d}"
    assert (rule.best_path / "weights").read_text() == str(step)
