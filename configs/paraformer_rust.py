"""Paraformer-v2 with the recipe of the Rust trainer, plain or enhanced.

Source    RustedBytes/w2v-bert-uk at commit adec09e, `--architecture paraformer`: src/paraformer.rs and the defaults of
          src/bin/train.rs, with the batch size of its example; An et al. 2024 (arXiv:2409.17746)
Data      any manifests: --data.train TRAIN.jsonl; without --data.validation, a tenth of them is the validation set
Command   [ENHANCED=1] [VARIANT=large] python -m asr_jax.train --config configs/paraformer_rust.py --data.train …
          VARIANT: small (xs, s), medium (sm, m; the default) or large (ml, l). Its --paraformer-alignment-mode is
          --model.heads.paraformer.alignment viterbi, uniform or greedy; its --paraformer-enhanced is ENHANCED=1
Expected  no error rate is published
Time      not published
Differs   The decoder is measured, and validation reports the CTC head beside it; inference averages the posteriors;
          norm statistics exclude padding; batches are shuffled; all labels of a batch have the same weight in the
          losses; frames beside a boundary have the target 0.25, which the Rust trainer documents and does not compute.
          In this config: the number of pieces is 128, because the Rust trainer does not state it.
"""

import os

from asr_jax.audio.presets import rust_squeezeformer
from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer_v2 import Enhancement, ParaformerV2
from asr_jax.models.base import Model
from asr_jax.models.conformer import PARAFORMER, Conformer
from asr_jax.nn.decoders.parallel_decoder import TransformerDecoder
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import EVERYTHING, AdamW
from asr_jax.optim.schedules import InverseEpoch
from asr_jax.text.tokenizers import TokenizerSettings

VARIANT = os.environ.get("VARIANT", "medium")
TAP = Conformer.paraformer_tap()
ENHANCED = os.environ.get("ENHANCED", "0")


def experiment() -> Experiment:
    if VARIANT not in PARAFORMER:
        raise ValueError(f"VARIANT is {VARIANT}: expected one of small (xs, s), medium (sm, m), large (ml, l)")
    if ENHANCED not in ("0", "1"):
        raise ValueError(f"ENHANCED is {ENHANCED}: expected 0 or 1")
    is_enhanced = ENHANCED == "1"
    encoder = Conformer.paraformer(VARIANT, taps=(TAP,) if is_enhanced else ())  # type: ignore[arg-type]
    decoder = TransformerDecoder(num_layers=6, num_heads=encoder.num_heads, feedforward_dim=2048)
    heads: dict[str, HeadSettings] = {
        "paraformer": ParaformerV2(decoder=decoder, enhanced=Enhancement(tap=TAP) if is_enhanced else None),
        "ctc": CTC(dropout=0.0),
    }
    if is_enhanced:
        heads["shallow"] = CTC(dropout=0.0, tap=TAP, scale=0.3)
    return Experiment(
        name="paraformer_rust_enhanced" if is_enhanced else "paraformer_rust",
        model=Model(front_end=rust_squeezeformer(), augment=(), encoder=encoder, heads=heads, primary="paraformer"),
        data=Data(
            train=("data/train.jsonl",),
            validation_share=0.1,
            tokenizer=TokenizerSettings(kind="sentencepiece", vocab_size=128),
            batching=Batching(budget=8, unit="utterances", row_multiple=1),
        ),
        optim=AdamW(
            schedule=InverseEpoch(peak_lr=1e-3, warmup_epochs=20, hold_epochs=160, exponent=1.0),
            clip_at=0.0,
            b2=0.999,
            eps=1e-5,
            weight_decay=5e-4,
            decay_factors=EVERYTHING,
        ),
        training=Training(
            num_epochs=500, ema=EMA(0.0), validation=Validation(each_epoch=True, heads=("ctc",)), log_every=50
        ),
    )
