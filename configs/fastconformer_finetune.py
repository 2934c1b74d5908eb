"""Fine-tuning of a Conformer or FastConformer of NeMo, or of a Parakeet-CTC of Hugging Face, on your own manifests.

Model     --init-from is the path of a .nemo file (stt_en_fastconformer_ctc_large.nemo, …) or of a folder with
          config.json, model.safetensors and tokenizer.json (nvidia/parakeet-ctc-0.6b, …). Sizes, mel bins, tokenizer,
          weights and running statistics are read from it. Without it, the model is a FastConformer large with random
          weights.
Data      any manifests: --data.train TRAIN.jsonl --data.validation VALIDATION.jsonl
Command   python -m asr_jax.train --config configs/fastconformer_finetune.py --init-from MODEL.nemo --data.train …
Options   --data.tokenizer.normaliser: texts must have the format of the model's output. Use lower.v1 for models without
          capital letters and punctuation (all CTC models above), and none for models with them.
          Another vocabulary: --data.tokenizer.path "" trains a tokenizer on the texts; a path selects an existing one.
          Rows of pieces that both vocabularies have are kept, the others are random. Use more updates and a higher
          learning rate in this case.
          Files of transducers and hybrid models have weights that CTC does not use: --init.strict False.
Expected  depends on the data. NeMo's stt_en_fastconformer_ctc_large starts with WER 2.1 / 4.2 on LibriSpeech
          (docs/source/asr/data/scores/en/fastconformer_en.csv).
Recipe    NVIDIA/NeMo examples/asr/conf/asr_finetune/speech_to_text_finetune.yaml at commit 8cfedd72: AdamW, 1e-4 after
          a warm-up of 5000 updates, cosine decay to 5e-6, 50 epochs.
          Differences: the loss is always the mean over labels, whatever the original model used. In this config: a
          shorter warm-up, for runs with fewer updates; the batch size is in seconds of audio; gradients are clipped at
          1 (NeMo does not clip); norms and biases have no weight decay; parameters are averaged.
Time      GPUs and hours are not published; they depend on the data.
"""

from asr_jax.audio.presets import nemo
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment, Init, Training, Validation, model_of, tokenizer_of
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.filters import Filters
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.pretrained.encoders import check_fits_config
from asr_jax.text.tokenizers import TokenizerSettings

MANIFESTS = "data/mine/manifests"


def experiment(init_from: str = "") -> Experiment:
    encoder, front_end = model_of(init_from) or (Conformer.fast("large"), nemo(num_mels=80))
    check_fits_config(encoder, init_from, config="configs/fastconformer_finetune.py")
    return Experiment(
        name="fastconformer_finetune",
        model=Model(
            front_end=front_end,
            augment=(SpecAugment.nemo(num_time_masks=10),),
            encoder=encoder,
            heads={"ctc": CTC(dropout=0.0, weight_by="labels")},
        ),
        data=Data(
            train=(f"{MANIFESTS}/train.jsonl",),
            validation=(f"{MANIFESTS}/validation.jsonl",),
            tokenizer=TokenizerSettings(kind="sentencepiece", path=tokenizer_of(init_from), vocab_size=257),
            filters=Filters(min_duration_s=0.1, max_duration_s=20.0),
            batching=Batching.planned(num_buckets=8, seconds=600.0, row_multiple=8),
            workers=8,
        ),
        init=Init(path=init_from),
        optim=AdamW(
            schedule=WarmupHoldDecay(peak_lr=1e-4, warmup_updates=500, decay="cosine", final_share=0.05),
            b1=0.9,
            b2=0.98,
            weight_decay=1e-3,
            clip_at=1.0,
        ),
        training=Training(
            num_epochs=50, precision="bf16", ema=EMA(0.999), validation=Validation(every=500), log_every=50
        ),
    )
