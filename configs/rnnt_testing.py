"""RNN-T with LSTMs as CAIMAN-ASR's testing model, 49.0 M parameters: configs/rnnt_base.py with other sizes.

Paper     as configs/rnnt_base.py; recipe: CAIMAN-ASR 1.14, training/configs/testing-1023sp.yaml
Data      as configs/rnnt_base.py; LibriSpeech in the recipe
Command   python -m asr_jax.train --config configs/rnnt_testing.py --data.train TRAIN.jsonl
Expected  not yet measured with this package
Time      not published
"""

from dataclasses import replace
from pathlib import Path

import asr_jax
from asr_jax.config import Experiment
from asr_jax.models.lstm import LSTMEncoder


def experiment() -> Experiment:
    base = asr_jax.load_config(Path(__file__).with_name("rnnt_base.py"))
    head = replace(base.model.heads["transducer"], joint_dim=512)
    front_end = replace(base.model.front_end, window_ms=20.0)
    return replace(
        base,
        name="rnnt_testing",
        model=replace(base.model, front_end=front_end, encoder=LSTMEncoder.testing(), heads={"transducer": head}),
        data=replace(base.data, tokenizer=replace(base.data.tokenizer, vocab_size=1024)),
        optim=replace(base.optim, lr_factors=(("rest", 1.0),)),
    )
