"""Fine-tuning of a W2V-BERT 2.0 from a Hugging Face folder with CTC on your own manifests.

Model     --init-from is the path of a local folder with config.json and model.safetensors, or several weight files with
          their index (facebook/w2v-bert-2.0, or a model that was fine-tuned with transformers). Sizes and rates are
          read from it. A missing head is initialised randomly; a head with other labels keeps the rows of common
          labels. Of a config.json, or a folder with this file alone, only the sizes are taken. Without it, the model
          has the released size of 580 M parameters and random weights.
Data      any manifests; labels are the lower-case characters of the training texts
Command   python -m asr_jax.train --config configs/w2v_bert_finetune.py --init-from DIR --data.train TRAIN.jsonl \
              --data.validation VALIDATION.jsonl
Export    python -m asr_jax.export runs/w2v_bert_finetune --to huggingface --out FOLDER writes a folder for
          transformers
Options   --model.encoder.num-adapters 1 --init.new 'heads_.*' 'encoder/adapter.*' adds an adapter, which halves the
          frame rate. --model.encoder.remat elementwise is faster and needs more memory. For capital letters and
          punctuation: --data.tokenizer.normaliser none. For little labelled data: --optim.freeze-updates 'encoder/.*'
          500 rest 0.
Expected  depends on the data; no results are published for seed 003's trainer, and this size is not yet measured with
          this package
Recipe    seed 003, "Training With The Rust Burn Trainer" (RustedBytes/w2v-bert-uk at commit adec09e): AdamW with 1e-4,
          betas 0.9 and 0.999, weight decay 5e-4, no clipping. Its example has batches of 16 utterances, 5 epochs, bf16
          and rematerialisation of activations.
          In this config: the learning rate falls linearly to 0 after 500 updates of warm-up (its warm-up of 20 epochs
          does not end within 5 epochs); eps 1e-8 instead of Burn's 1e-5; gradients are clipped at 1; norms and biases
          have no weight decay; parameters are averaged; the batch size is in seconds of audio; 5 % of the frames are
          masked, the default of transformers (Wav2Vec2BertConfig.mask_time_prob).
Time      not published; it depends on the data
"""

from dataclasses import replace

from asr_jax.audio.presets import w2v_bert
from asr_jax.config import Experiment, Init, Training, Validation, model_of
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.filters import Filters
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.w2v_bert import W2VBert
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.pretrained.encoders import check_fits_config
from asr_jax.text.tokenizers import TokenizerSettings

MANIFESTS = "data/mine/manifests"


def experiment(init_from: str = "") -> Experiment:
    encoder, front_end = model_of(init_from) or (W2VBert(), w2v_bert())
    check_fits_config(encoder, init_from, config="configs/w2v_bert_finetune.py")
    return Experiment(
        name="w2v_bert_finetune",
        model=Model(
            front_end=front_end,
            augment=(),
            encoder=replace(encoder, masks=True, remat="layers"),
            heads={"ctc": CTC(dropout=0.1)},
        ),
        data=Data(
            train=(f"{MANIFESTS}/train.jsonl",),
            validation=(f"{MANIFESTS}/validation.jsonl",),
            tokenizer=TokenizerSettings(kind="characters", normaliser="lower.v1"),
            filters=Filters(min_duration_s=0.1, max_duration_s=30.0),
            batching=Batching.planned(num_buckets=8, seconds=160.0, row_multiple=8),
            workers=8,
        ),
        init=Init(path=init_from, new=("heads_.*",)),
        optim=AdamW(
            schedule=WarmupHoldDecay(peak_lr=1e-4, warmup_updates=500, decay="linear"),
            b1=0.9,
            b2=0.999,
            weight_decay=5e-4,
            clip_at=1.0,
        ),
        training=Training(
            num_epochs=5, precision="bf16", ema=EMA(0.999), validation=Validation(every=500), log_every=50
        ),
    )
