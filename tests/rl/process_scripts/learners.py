"""What the processes of `test_learner_processes` do: ``learners.py RANK WORLD_SIZE DIRECTORY SCENARIO...``.

The processes are connected over gloo, on loopback and a file store. Each runs the scenarios, which are functions of
this module, one after the other, and writes what they return to ``<scenario>-<rank>.json`` in the directory.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from fixed_rollouts import MAX_TOKENS, TOKENIZER, Source, model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import hookline as hl
from hookline import rl
from hookline.rl.environments import RewardDataset

RANK, WORLD_SIZE, ROOT = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
LOSSES: dict[str, dict[str, Any]] = {
    **{name: {"loss_type": name} for name in ("dapo", "grpo", "bnpo", "dr_grpo", "sapo", "vespo")},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.1},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "micro": {"micro_batch_size": 3, "beta": 0.1, "mini_batches": 2},
    "entropy": {"entropy_coef": 0.1, "use_adaptive_entropy": True, "entropy_target": 3.0},
    "batch": {"scale_rewards": "batch"},
    "truncated": {"mask_truncated_completions": True, "micro_batch_size": 2},
}


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "to_local") else tensor


def weights(net):
    return [round(float(value), 7) for p in net.parameters() for value in whole(p.detach()).flatten()]


class Rows(hl.Callback):
    def __init__(self):
        self.rows = []

    def on_log(self, loop, step, metrics):
        if "loss" in metrics:
            self.rows.append({name: value for name, value in metrics.items() if isinstance(value, float | int)})


def losses():
    """The same completions in one process, in two rollout steps, or one of them in each of two processes."""
    found = {}
    for name, options in LOSSES.items():
        net, rows = model(), Rows()
        # The deviation of a batch is that of a rollout step of all processes, so one process makes one such step.
        steps = 1 if name == "batch" and WORLD_SIZE == 1 else 2
        own = {} if WORLD_SIZE == 1 else {"own": RANK}
        learner = rl.GRPOLearner(
            net,
            Source(parts=steps, **own),
            pad_id=TOKENIZER.pad_token_id,
            config=hl.TrainerConfig(
                max_steps=2, output_dir=str(ROOT / "losses"), summary=False, accumulation=max(1, steps // WORLD_SIZE)
            ),
            grpo=rl.GRPOConfig(**{"updates": 2, **options}),
            max_tokens=MAX_TOKENS,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            callbacks=[rows],
        )
        learner.fit()
        found[name] = {"weights": weights(net), "losses": [row["loss"] for row in rows.rows]}
    return found


def ends_early(prompts, completions, **columns):
    return [1.0 - 0.1 * len(completion) for completion in completions]


class Watch(hl.Callback):
    """Keeps the prompts of the rollouts of this process, and stops all of them from rank one."""

    def __init__(self, stop_at, stop_at_rollout):
        self.prompts, self.stop_at, self.stop_at_rollout = [], stop_at, stop_at_rollout

    def on_rollout_end(self, loop, step_idx, rollouts):
        self.prompts.append([each.task.prompt for each in rollouts])
        if step_idx + 1 == self.stop_at_rollout and RANK == WORLD_SIZE - 1:
            loop.request_stop("enough of this")

    def on_step_end(self, loop, step_idx, batch, metrics):
        if loop.step == self.stop_at and RANK == WORLD_SIZE - 1:
            loop.request_stop("enough of this")


def trained(name, *, sharded, stop_at=None, stop_at_rollout=None, resume=False, grpo=None):
    """Train with rollouts of a worker in each process."""
    net = model()
    if sharded:
        mesh = init_device_mesh("cpu", (WORLD_SIZE,))
        fully_shard(net.model.layers[0], mesh=mesh)
        fully_shard(net, mesh=mesh)
    prompts = [{"prompt": f"{number}>"} for number in range(400)]
    lessons = [
        rl.Lesson("first", RewardDataset(prompts, [ends_early]), threshold=0.01),
        rl.Lesson("second", RewardDataset(prompts, [ends_early]), depends_on=("first",)),
    ]
    rows, watch = Rows(), Watch(stop_at, stop_at_rollout)
    config = rl.RLConfig(
        curriculum=rl.CurriculumConfig(
            lessons, micro_eval_frequency=2, micro_eval_n_examples=2, eval_frequency=0, min_results=20
        ),
        rollout=rl.RolloutConfig(prompts=3, group_size=4, max_tokens=5, samples=None),
        grpo=rl.GRPOConfig(**(grpo or {})),
        train=hl.TrainerConfig(
            name=name,
            output_dir=str(ROOT / "runs"),
            max_steps=6,
            learning_rate=0.01,
            summary=False,
            strict=True,
            resume="last" if resume else None,
        ),
    )
    result = rl.train(config, model=net, tokenizer=TOKENIZER, callbacks=[rows, watch])
    return {
        "rows": rows.rows,
        "weights": weights(net),
        "prompts": watch.prompts,
        "step": result.step,
        "reason": result.stop_reason,
        "directory": str(result.output_dir),
        "world_size": dist.get_world_size(),
    }


GRPO = {"updates": 2, "micro_batch_size": 5, "beta": 0.1}
AGREED = {"dynamic_sampling": True, "top_entropy_quantile": 0.4, "scale_rewards": "batch"}


def together():
    """A training, the same stopped by one process and resumed, and one with other settings that need agreement."""
    return {
        "whole": trained("whole", sharded=False, grpo=GRPO),
        "stopped": trained("halves", sharded=False, grpo=GRPO, stop_at=3),
        "resumed": trained("halves", sharded=False, grpo=GRPO, resume=True),
        "agreed": trained("agreed", sharded=False, grpo=AGREED),
        "interrupted": trained("interrupted", sharded=False, grpo=AGREED, stop_at_rollout=5),
        "continued": trained("interrupted", sharded=False, grpo=AGREED, resume=True),
    }


def sharded():
    """The same with a sharded model, and a reference that follows it."""
    following = GRPO | {"sync_ref_model": True, "ref_model_sync_steps": 2}
    return {
        "whole": trained("sharded", sharded=True, grpo=GRPO),
        "following": trained("following", sharded=True, grpo=following),
        "stopped": trained("parts", sharded=True, grpo=following, stop_at=3),
        "resumed": trained("parts", sharded=True, grpo=following, resume=True),
    }


def refused():
    """A policy that would generate with the sharded model itself."""
    net = model()
    fully_shard(net, mesh=init_device_mesh("cpu", (WORLD_SIZE,)))
    config = rl.RolloutWorkerConfig(
        curriculum_config=rl.CurriculumConfig([rl.Lesson("sort", "sorting")]), output_dir=None
    )
    worker = rl.RolloutWorker(config, policy=rl.HFPolicy(net, TOKENIZER))
    try:
        rl.GRPOLearner(net, worker, pad_id=0, config=hl.TrainerConfig(max_steps=1, output_dir=None))
    except hl.OptionError as error:
        return str(error)
    return ""


def main():
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(ROOT / "store"), WORLD_SIZE), rank=RANK, world_size=WORLD_SIZE
    )
    for name in sys.argv[4:]:
        found = globals()[name]()
        (ROOT / f"{name}-{RANK}.json").write_text(json.dumps(found))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
