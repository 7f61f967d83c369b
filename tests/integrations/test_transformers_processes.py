"""A Hugging Face and a TRL trainer in two real processes, connected over gloo on loopback."""

import json
from pathlib import Path

import pytest

import hookline as hl
from hookline._record.records import Metrics, Sample

for package in ("torch", "transformers", "datasets", "trl"):
    pytest.importorskip(package)

SCRIPT = '''
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

torch.set_num_threads(1)
RANK, ROOT = int(os.environ["RANK"]), Path(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{ROOT / 'store'}", rank=RANK, world_size=2)

from datasets import Dataset
from transformers import Trainer, TrainingArguments
from trl import GRPOConfig, GRPOTrainer

import hookline as hl
from hookline.integrations.transformers import attach
from hookline.testing import character_tokenizer, tiny_causal_lm
from hookline.testing import RecordingCallback

TOKENIZER = character_tokenizer()
SETTINGS = {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}


class Ask(hl.Callback):
    """Makes requests on rank one only."""

    def on_step_end(self, loop, step_idx, batch, metrics):
        loop.log({f"seen_by_{loop.rank}": step_idx})
        if loop.rank == 1 and step_idx == 0:
            loop.request_checkpoint()
        if loop.rank == 1 and step_idx == 1:
            loop.request_stop("one has enough")


def report(name, trainer, loop, seen, **more):
    facts = {"rank": loop.rank, "world_size": loop.world_size, "steps": trainer.state.global_step}
    facts |= {"reason": loop.stop_reason, "dir": str(loop.dir), "saved": [str(row.path) for row in loop.checkpoints]}
    (ROOT / f"{name}-{RANK}.json").write_text(json.dumps(facts | {"moments": seen.names()} | more))


def plain():
    ids = [TOKENIZER(f"{i}+{i}=")["input_ids"][:6] for i in range(10, 26)]
    trainer = Trainer(
        tiny_causal_lm(TOKENIZER, hidden_size=16, heads=2),
        TrainingArguments(str(ROOT / "out"), max_steps=6, per_device_train_batch_size=2, **SETTINGS),
        train_dataset=[{"input_ids": each, "labels": each} for each in ids],
        data_collator=lambda rows: {key: torch.tensor([row[key] for row in rows]) for key in rows[0]},
    )
    seen, zero = RecordingCallback(), RecordingCallback().configure(name="zero", ranks="zero")
    loop = attach(trainer, [seen, zero, Ask()], name="plain", root=ROOT / "runs", summary=False).loop
    trainer.train()
    logged = [log.get("loss") for log in trainer.state.log_history]
    report("plain", trainer, loop, seen, zero=len(zero.names()), logged=logged)


def generating():
    def length(completions, **columns):
        return [float(len(set(text))) for text in completions]

    trainer = GRPOTrainer(
        tiny_causal_lm(TOKENIZER, hidden_size=16, heads=2),
        args=GRPOConfig(str(ROOT / "grpo"), max_steps=2, per_device_train_batch_size=2, num_generations=2,
                        max_completion_length=6, bf16=False, **SETTINGS),
        reward_funcs=[length],
        train_dataset=Dataset.from_list([{"prompt": f"{i}+1="} for i in range(8)]),
        processing_class=TOKENIZER,
    )
    seen = RecordingCallback()
    loop = attach(trainer, [seen], name="generating", root=ROOT / "runs", summary=False).loop
    trainer.train()
    reported = [each for event in seen.events if event.moment == "on_rollout_end" for each in event.arguments[1]]
    reported = [[each.task.prompt, each.completion.text, each.advantage] for each in reported]
    noted = trainer._logs
    columns = (noted["prompt"], noted["completion"], noted["advantages"])
    report("generating", trainer, loop, seen, reported=reported, noted=list(zip(*columns)))


plain()
generating()
'''


@pytest.fixture(scope="module")
def reports(tmp_path_factory, torch_programs):
    """The reports of the processes for each scenario, by rank."""
    root = tmp_path_factory.mktemp("together")
    (root / "script.py").write_text(SCRIPT)
    launched = {"RANK": "{rank}", "LOCAL_RANK": "{rank}", "WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
    launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # required, and not used: the script connects them
    torch_programs.run_ranks(2, root / "script.py", root, env=launched, cwd=root, timeout=180)
    return {
        name: [json.loads((root / f"{name}-{rank}.json").read_text()) for rank in range(2)]
        for name in ("plain", "generating")
    }


def test_two_processes_apply_one_ranks_requests_together(reports):
    zero, one = reports["plain"]
    assert [(each["rank"], each["world_size"], each["steps"]) for each in (zero, one)] == [(0, 2, 2), (1, 2, 2)]
    assert (zero["reason"], one["reason"]) == ("one has enough (requested by rank 1)", "one has enough")
    assert [Path(path).name for path in zero["saved"]] == [Path(path).name for path in one["saved"]] == ["checkpoint-1"]


def test_two_processes_record_what_the_host_logs_once_and_what_each_logs_itself(reports):
    zero, one = reports["plain"]
    assert zero["dir"] == one["dir"]
    rows = [r.values for r in hl.read(zero["dir"]) if isinstance(r, Metrics)]
    assert [row["loss"] for row in rows if "loss" in row] == zero["logged"][:2]
    own = sorted(name for row in rows for name in row if "seen_by" in name)
    assert own == ["rank1/seen_by_1", "rank1/seen_by_1", "seen_by_0", "seen_by_0"]


def test_two_processes_fire_the_same_moments_except_rank_zero_ones(reports):
    zero, one = reports["plain"]
    assert zero["moments"] == one["moments"]
    assert (zero["zero"], one["zero"]) == (len(zero["moments"]), 0)


def test_two_processes_report_and_record_their_own_rollouts(reports):
    zero, one = reports["generating"]
    last = [each for report in (zero, one) for each in report["reported"][-2:]]
    assert last == zero["noted"]
    recorded = sorted(r.completion for r in hl.read(zero["dir"]) if isinstance(r, Sample))
    assert recorded == sorted(text for report in (zero, one) for _, text, _ in report["reported"])
