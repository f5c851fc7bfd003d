#!/usr/bin/env bash
# Trains one policy on several machines with torchrun. Run it on every machine, with the same address:
#
#   examples/two_machines.sh 10.0.0.1:29400 breakout --steps 10000000
#
# The address is that of one of the machines. MACHINES and RANKS (processes on each machine, usually one per GPU) may be
# set. All machines need the same RUN folder, on a shared disk, and a network that you trust (docs/ranks.md).
set -eu

if [ $# -lt 2 ]; then
    echo "usage: $0 HOST:PORT RECIPE [options of paceline train]" >&2
    exit 2
fi
address=$1
shift

exec torchrun \
    --nnodes "${MACHINES:-2}" \
    --nproc-per-node "${RANKS:-1}" \
    --rdzv-backend c10d \
    --rdzv-endpoint "$address" \
    --rdzv-id paceline \
    -m paceline.cli.main train "$@" --run-dir "${RUN:-runs/two_machines}"
