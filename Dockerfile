# syntax=docker/dockerfile:1
# Image for training and all other commands: docs/container.md.
#   docker build --tag asr_jax .                                    NVIDIA GPUs, CUDA 12
#   docker build --tag asr_jax:cpu --build-arg EXTRAS=formats .     CPUs; EXTRAS=tpu,formats for TPUs
FROM python:3.12-slim-bookworm

# The libraries of CUDA are packages of Python; the driver is that of the host.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONUNBUFFERED=1
WORKDIR /opt/asr_jax

# The packages first: a change of the code does not install them again.
ARG EXTRAS=cuda12,formats
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN mkdir asr_jax && touch asr_jax/__init__.py \
    && pip install --no-cache-dir --constraint constraints.txt --editable ".[$EXTRAS]"

COPY asr_jax asr_jax
COPY configs configs
RUN useradd --uid 1000 --create-home asr
USER 1000

# Without a shell in between, signals reach Python.
ENTRYPOINT ["python", "-m"]
CMD ["asr_jax.train", "--help"]
