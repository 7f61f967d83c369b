"""Models that are sharded over two processes with FSDP2, in a loop written by hand and in a `Trainer`."""

import json
import pickle
import shutil
from pathlib import Path

import pytest

import hookline as hl
from hookline.loops import checkpoint

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "scripts" / "fsdp.py"
BAD = 3
"""The step whose gradient is not finite in one shard."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, torch_programs):
    """What each of two processes found."""
    root = tmp_path_factory.mktemp("fsdp")
    torch_programs.run_ranks(2, SCRIPT, "{rank}", root)
    found = [json.loads((root / f"found-{rank}.json").read_text()) for rank in (0, 1)]
    assert [each["bare"]["ranks"] for each in found] == [[0, 2], [1, 2]]
    return found


def test_sharded_loop_resumed_repeats_losses_weights_and_averages_exactly(ranks):
    for rank in (each["bare"] for each in ranks):
        first, second = rank["halves"]
        assert (rank["stopped"], rank["resumed"]) == ([3, "stopped"], [8, "completed"])
        assert first["losses"] + second["losses"] == rank["straight"]["losses"]
        assert (second["weights"], second["ema"]) == (rank["straight"]["weights"], rank["straight"]["ema"])


def test_sharded_loop_checkpoint_holds_the_shards_of_both_ranks_and_is_whole(ranks):
    (path,) = {path for rank in ranks for path in rank["bare"]["saved"]}
    shards = [each.name for each in sorted(Path(path).glob("sharded/*"))]
    assert shards == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    assert checkpoint.damage_of(Path(path)) is None


def test_sharded_loop_gradient_norms_are_those_of_the_whole_model(ranks):
    for rank in (each["bare"] for each in ranks):
        assert rank["recorded"] == pytest.approx(rank["straight"]["norms"])
        assert rank["names"] == ["grad_norm/0", "grad_norm/1", "grad_norm/3"]


def test_sharded_loop_guard_with_a_bad_shard_on_one_rank_skips_the_update_on_both(ranks):
    zero, one = (rank["guarded"] for rank in ranks)
    assert (zero["world_size"], zero["weights"]) == (2, one["weights"])
    moved = [before != after for before, after in zip(zero["weights"], zero["weights"][1:], strict=False)]
    assert moved == [step != BAD for step in range(2, 9)]


def test_sharded_loop_monitor_and_guard_on_rank_zero_only_fail_rather_than_hang(ranks):
    zero, one = (rank["guarded"] for rank in ranks)
    reported = sorted({failure.partition(" (")[0] for failure in zero["failures"]})
    assert reported == ["GradientMonitor runs on rank zero only", "NaNGuard runs on rank zero only"]
    assert (zero["step"], one["step"], one["failures"]) == (8, 8, [])


def test_sharded_trainer_resumed_repeats_weights_and_averages_exactly(ranks):
    for rank in (each["fitted"] for each in ranks):
        assert (rank["world_size"], rank["state"]) == (2, ["completed", "stopped", "completed"])
        assert rank["weights"][0] == rank["weights"][1]
        assert rank["averages"][0] == rank["averages"][2]


def test_sharded_trainer_learns_and_averages_what_an_unsharded_one_does(ranks):
    for rank in (each["fitted"] for each in ranks):
        assert rank["weights"][0] == pytest.approx(rank["whole"][0], abs=1e-5)
        assert rank["averages"][0] == pytest.approx(rank["averages"][1], abs=1e-5)
        assert rank["norms"][0] == pytest.approx(rank["norms"][1], abs=1e-4)


def test_checkpoints_of_sharded_and_whole_models_load_into_each_other(ranks):
    for rank in (each["fitted"] for each in ranks):
        assert rank["whole"][0] == rank["whole"][1]
        assert rank["halved"][0] == rank["halved"][1]


def alone(tmp_path):
    """A Trainer of the same model in this process alone."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.BatchNorm1d(7), torch.nn.Dropout(0.5))
    net.append(torch.nn.Linear(7, 1))
    config = hl.TrainerConfig(epochs=3, accumulation=2, schedule="cosine", output_dir=str(tmp_path), summary=False)
    return hl.Trainer(net, [(torch.ones(2, 4), torch.ones(2, 1))], config=config, loss=torch.nn.functional.mse_loss)


def test_sharded_checkpoint_loads_in_one_process_without_a_process_group(ranks, tmp_path):
    found = ranks[0]["fitted"]
    trainer = alone(tmp_path)
    trainer.load_checkpoint(found["checkpoint"])
    assert [v for p in trainer.model.parameters() for v in p.detach().flatten().tolist()] == found["halved"][0]


class Bomb:
    def __reduce__(self):
        return exec, ("print('code that an index names was run')",)


def test_sharded_checkpoint_whose_index_names_code_is_refused_and_runs_nothing(ranks, tmp_path, capsys):
    place = tmp_path / "checkpoint"
    shutil.copytree(ranks[0]["fitted"]["checkpoint"], place)
    index = place / "sharded" / ".metadata"
    bomb = pickle.dumps(Bomb())
    index.write_bytes(bomb + bytes(index.stat().st_size - len(bomb)))
    manifest = json.loads((place / "manifest.json").read_text())
    without_digests = {name: manifest[name] for name in manifest if name not in ("sha256", "#", "crc")}
    (place / "manifest.json").write_text(json.dumps(without_digests))
    with pytest.raises(hl.CheckpointError, match="builtins.exec, which does not belong in a checkpoint's index"):
        alone(tmp_path).load_checkpoint(place)
    assert "was run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("case", "message"),
    [("early", "Make the optimizer from model.parameters() after fully_shard"), ("fsdp1", "FSDP1")],
)
def test_model_of_fsdp1_and_optimizer_made_too_early_are_refused_at_the_start(ranks, case, message):
    for reported in (text for rank in ranks for text in rank["refused"][case]):
        assert reported.startswith("OptionError")
        assert message in reported
