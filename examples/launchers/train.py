"""A training that a scheduler may stop and start again: checkpoints, and `resume="auto"`."""

import argparse
import os
import sys

import torch

import hookline as hl


def main() -> None:
    """Train until it is done, or until a signal stops it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = torch.utils.data.TensorDataset(x := torch.randn(64, 4), x.sum(1, keepdim=True))
    config = hl.TrainerConfig(
        # The same name at each start of a job, and another one for each job.
        name=f"job-{os.environ.get('SLURM_JOB_ID', 'local')}",
        max_steps=args.steps,
        batch_size=8,
        resume="auto",
        summary=False,
    )
    callbacks = [hl.callbacks.CheckpointCallback(every_n_steps=5), hl.callbacks.PrintProgress(5)]
    trainer = hl.Trainer(
        torch.nn.Linear(4, 1), data, config=config, loss=torch.nn.functional.mse_loss, callbacks=callbacks
    )
    trainer.fit()
    print(f"{trainer.state} after {trainer.step} steps", flush=True)
    if trainer.state != "completed":
        sys.exit(1)  # exit code 0 would tell Kubernetes that the job is done


if __name__ == "__main__":
    main()
