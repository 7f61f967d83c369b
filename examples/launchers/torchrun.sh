#!/bin/bash
# Two processes on this machine. If one fails, torchrun starts both again, and they continue from the last checkpoint.
exec torchrun --standalone --nproc-per-node 2 --max-restarts 3 "${TRAIN:-train.py}" "$@"
