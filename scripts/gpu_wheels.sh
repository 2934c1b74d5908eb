#!/usr/bin/env bash
# Downloads packages that the Python of a GPU machine may lack to .wheels, for scripts/gpu_check.sh on a machine without
# a network. The machine must provide jax, flax, optax, orbax, pyarrow and sentencepiece, and triton (1 GB) for the
# kernels of Triton.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./scripts/setup.sh
mkdir -p .wheels
.venv/bin/python -m pip download --quiet --dest .wheels --only-binary :all: --no-deps \
    --python-version 3.12 --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --platform any \
    flatbuffers grain array-record tyro docstring-parser typeguard soundfile soxr cffi pycparser tensorboardX rapidfuzz regex icu4py rich \
    jax-triton==0.3.1 portpicker markdown-it-py mdurl pygments jaxtyping wadler-lindig beartype pytest pluggy iniconfig pytest-xdist execnet
du -sh .wheels
