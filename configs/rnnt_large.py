"""RNN-T with LSTMs as CAIMAN-ASR's large model, 195.6 M parameters: configs/rnnt_base.py with other sizes.

Paper     as configs/rnnt_base.py; recipe: CAIMAN-ASR 1.14, training/configs/large-17407sp.yaml
Data      as configs/rnnt_base.py
Command   python -m asr_jax.train --config configs/rnnt_large.py --data.train TRAIN.jsonl
Expected  not yet measured with this package
Time      not published
"""

from dataclasses import replace
from pathlib import Path

import asr_jax
from asr_jax.config import Experiment
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.nn.recurrent.prediction import LSTMPrediction


def experiment() -> Experiment:
    base = asr_jax.load_config(Path(__file__).with_name("rnnt_base.py"))
    head = replace(base.model.heads["transducer"], prediction=LSTMPrediction(768, num_layers=2), joint_dim=1024)
    return replace(
        base,
        name="rnnt_large",
        model=replace(base.model, encoder=LSTMEncoder.large(), heads={"transducer": head}),
        data=replace(base.data, tokenizer=replace(base.data.tokenizer, vocab_size=17408)),
        optim=replace(base.optim, lr_factors=(("heads_transducer/output/.*", 0.243), ("rest", 1.0))),
    )
