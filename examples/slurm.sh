#!/usr/bin/env bash
# A SLURM job that trains until it is done, over as many time limits as that takes:
#
#   sbatch examples/slurm.sh breakout --steps 10000000
#
# Two minutes before the time limit SLURM sends SIGUSR1 to this script (B: means the batch script alone). The script
# sends SIGTERM to all ranks, which save a checkpoint and end. The job is requeued, and continues. A training process has
# no handler of SIGUSR1: it would end without a checkpoint.
#SBATCH --job-name=paceline
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
set -u

run="runs/slurm-$SLURM_JOB_ID"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=29500

if [ -e "$run/checkpoints/latest" ]; then
    srun paceline train --resume --run-dir "$run" &
else
    srun paceline train "$@" --run-dir "$run" &
fi
training=$!

stopped=
stop() {
    stopped=yes
    scancel --signal=TERM "$SLURM_JOB_ID.0" # to all ranks. A SIGTERM to srun itself would kill them at once
}
trap stop USR1

wait "$training" # returns early if the signal arrives
code=$?
if [ -n "$stopped" ]; then
    wait "$training" # until the checkpoint is written
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
