#!/bin/bash
# A job on a Ray cluster. The script is recorded where it runs, on the head node, and sent to a server.
exec ray job submit \
    --address "${RAY_ADDRESS:-http://127.0.0.1:8265}" \
    --working-dir "${WORKING_DIR:-.}" \
    --runtime-env "$(dirname "$0")/ray_environment.yaml" \
    -- hookline exec -- python "${TRAIN:-train.py}" "$@"
