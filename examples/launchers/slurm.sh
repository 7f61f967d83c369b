#!/bin/bash
# A job that saves a checkpoint when its time runs out, and continues in the queue.
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Slurm sends USR1 to this script two minutes before the time limit.
#SBATCH --signal=B:USR1@120

export HOOKLINE_ROOT="${HOOKLINE_ROOT:-$HOME/runs}" # on a file system of all nodes
export HOOKLINE_TAGS="slurm,${SLURM_JOB_PARTITION:-default}"

requeue() {
    # hookline stops at the next step and saves a checkpoint.
    kill -TERM "$training" && wait "$training"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
trap requeue USR1
# Preemption sends TERM: save, and leave the requeue to Slurm.
trap 'kill -TERM "$training"; wait "$training"; exit 0' TERM

# In the background: the shell runs a trap only while it waits.
srun --kill-on-bad-exit=1 python "${TRAIN:-train.py}" "$@" &
training=$!
wait "$training"
