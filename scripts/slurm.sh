#!/usr/bin/env bash
# Trains under Slurm with one process on each node, and continues after time limits and preemption. From the checkout:
#   sbatch --nodes 4 scripts/slurm.sh --config configs/zipformer.py --run-dir /shared/runs/mine
# Options of sbatch before the script replace those below; the arguments after it are those of asr_jax.train.
#   PYTHON            Python with the package (default: .venv/bin/python of the folder in which sbatch is called)
#   REQUEUE_AFTER_S   a job with a killed process is requeued only if it has run this many seconds (default: 600), so
#                     that one that dies at its start does not come back forever
#   MAX_REQUEUES      largest number of times that a job is requeued (default: 100), so that one whose node hangs at each
#                     start does not come back forever
#SBATCH --job-name=asr_jax
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
# srun does not take it from sbatch.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

# The processes end together after a signal, so the first one must not end the others at once. If one is killed, they
# end within --wait seconds.
code=0
srun --kill-on-bad-exit=0 --wait=60 "$python" -m asr_jax.train "$@" || code=$?

# 75: a signal or training.limits.max_hours ended the run after a checkpoint. Above 128: a signal killed a process.
if [ "$code" -eq 75 ] || { [ "$code" -gt 128 ] && [ "$SECONDS" -ge "${REQUEUE_AFTER_S:-600}" ]; }; then
    if [ "${SLURM_RESTART_COUNT:-0}" -ge "${MAX_REQUEUES:-100}" ]; then
        echo "slurm.sh: exit code $code after $SECONDS s: not requeued after $SLURM_RESTART_COUNT times (MAX_REQUEUES)" >&2
        exit "$code"
    fi
    echo "slurm.sh: exit code $code after $SECONDS s: requeued" >&2
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
