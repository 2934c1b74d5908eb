"""The systems that can be migrated."""

from asr_jax.migration.caiman import CAIMAN
from asr_jax.migration.engine import System
from asr_jax.migration.icefall import ICEFALL
from asr_jax.migration.nemo import NEMO
from asr_jax.migration.quartznet import QUARTZNET
from asr_jax.migration.rust import RUST
from asr_jax.migration.wav2vec2 import WAV2VEC2

SYSTEMS: tuple[System, ...] = (CAIMAN, QUARTZNET, WAV2VEC2, RUST, NEMO, ICEFALL)
