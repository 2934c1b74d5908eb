"""Complete checkpoints of wav2vec 2.0 for fairseq (3d262bb2) and NVIDIA's DeepLearningExamples (729963dd).

They contain the settings of the model, and for CTC the dictionary. Both systems number the labels `<s>` (the blank),
`<pad>`, `</s>`, `<unk>`, followed by the labels of texts: the rows of a head are written in this order.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.presets import wav2vec2
from asr_jax.core.errors import UserError
from asr_jax.heads.contrastive import Contrastive
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.nn.wav2vec.quantizer import Quantizer
from asr_jax.nn.wav2vec.span_masks import SpanMask
from asr_jax.pretrained.base import Symbols
from asr_jax.pretrained.keymap import NamedWeights
from asr_jax.pretrained.torch_writer import Instance
from asr_jax.pretrained.wav2vec2_fairseq import (
    ACTIVATIONS,
    CONTRASTIVE,
    ENCODER,
    FAIRSEQ_EPS,
    OF_CTC,
    QUANTIZER,
    of_mask,
    written,
)
from asr_jax.text.vocabularies import BOUNDARY, FAIRSEQ_SPECIALS

NEVER = -1e4
"""Bias of labels that the dictionary needs and the model does not have: their probability is 0 in float32."""
HEAD = ("proj.weight", "proj.bias")


def fairseq_checkpoint(weights: NamedWeights, model: Model, symbols: Symbols) -> dict[str, Any]:
    """Returns the content of a checkpoint that fairseq's `load_model_ensemble_and_task` loads.

    The weights have fairseq's names of a pre-trained model.

    Raises:
        UserError: If fairseq does not have the model.
    """
    encoder, contrastive, normalise = _parts(model)
    if encoder.hourglass or encoder.rotary or not encoder.projected:
        raise UserError(
            "the encoder has an hourglass, rotary positions or no projection, which fairseq's wav2vec 2.0 does not "
            "have: expected --to deeplearningexamples, or --out NAME.safetensors for the weights alone"
        )
    pretraining = {
        "_name": None,
        "common": {"seed": 1, "tpu": False, "fp16": False},
        "task": {"_name": "audio_pretraining", "data": "", "normalize": normalise, "sample_rate": 16000},
        "model": {"_name": "wav2vec2", **encoder_section(encoder), **contrastive_section(contrastive)},
    }
    rest = {
        "args": None,
        "criterion": None,
        "last_optimizer_state": None,
        "optimizer_history": [_history("Wav2vecCriterion")],
        "extra_state": {"train_iterator": {"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True}},
    }
    if contrastive or not model.recognises:
        return {**rest, "cfg": pretraining, "model": dict(weights), "task_state": {}}
    named, dictionary = in_fairseq_order(weights, symbols)
    prefixed = {f"w2v_encoder.{'' if name in HEAD else 'w2v_model.'}{name}": each for name, each in named.items()}
    tuning = {
        "_name": None,
        "common": pretraining["common"],
        "task": {
            "_name": "audio_finetuning",
            "data": "",
            "labels": "ltr",
            "normalize": normalise,
            "sample_rate": 16000,
            "tpu": False,
            "seed": 1,
            "autoregressive": False,
        },
        "model": {
            "_name": "wav2vec_ctc",
            "w2v_path": "",
            "w2v_args": pretraining,
            "data": "",
            "normalize": normalise,
            "ddp_backend": "legacy_ddp",
            **tuning_section(encoder, model),
        },
    }
    rest["optimizer_history"] = [_history("CtcCriterion")]
    stored = Instance("fairseq.data.dictionary", "Dictionary", _dictionary(dictionary))
    return {**rest, "cfg": tuning, "model": prefixed, "task_state": {"target_dictionary": stored}}


def nvidia_checkpoint(weights: NamedWeights, model: Model, symbols: Symbols) -> dict[str, Any]:
    """Returns the content of a checkpoint that NVIDIA's `inference.py` and `train.py --mode finetune` load.

    The weights have fairseq's names of a pre-trained model.

    Raises:
        UserError: If NVIDIA's code does not have the model.
    """
    encoder, contrastive, normalise = _parts(model)
    hourglass = encoder.hourglass
    args = {
        **encoder_section(encoder),
        **contrastive_section(contrastive),
        **tuning_section(encoder, model),
        "mode": "finetune" if model.recognises else "pretrain",
        "normalize": normalise,
        "sample_rate": 16000,
        "rotary_embeddings": encoder.rotary,
        "mha": "fairseq",
        "masked_feature_extractor": False,
        "hourglass_transformer": (
            f"[{hourglass.before},({hourglass.middle},{hourglass.factor}),{hourglass.after}]" if hourglass else None
        ),
        "hourglass_resample": hourglass.resample,
        "labels": "ltr",
        "fp32_pos_conv": True,
        "fp32_conv_norms": True,
    }
    rest = {
        "args": args,
        "ema_model": None,
        "optimizer": None,
        "scaler": None,
        "train_state": {
            "step": 0,
            "epoch": 1,
            "best_val_loss": float("inf"),
            "best_val_wer": float("inf"),
            "optimizer_type": None,
            "scaler_type": None,
        },
    }
    if not model.recognises:
        return {**rest, "model": dict(weights)}
    named, dictionary = in_fairseq_order(weights, symbols)
    prefixed = {f"w2v_encoder.{'' if name in HEAD else 'w2v_model.'}{name}": each for name, each in named.items()}
    lines = "".join(f"{symbol} 1\n" for symbol in dictionary[len(FAIRSEQ_SPECIALS) :])
    return {**rest, "model": prefixed, "output_labels": lines}


def in_fairseq_order(weights: NamedWeights, symbols: Symbols) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the weights with the rows of the head in the order of fairseq's dictionary, and its symbols.

    Labels of `<pad>`, `</s>` and `<unk>` that the model lacks get a row with the bias NEVER. A label `<s>` beside the
    blank, as in Hugging Face's vocabularies, becomes `<pad>`.

    Raises:
        UserError: If a label contains white space other than the space itself, the label `|` is not the space, or the
            labels `<s>` and `<pad>` exist in addition to the blank.
    """
    blank, pad, end, _ = FAIRSEQ_SPECIALS
    other: dict[str | None, str] = {None: blank, "": end, **({} if pad in symbols else {blank: pad})}
    names = [other.get(symbol, symbol) for symbol in symbols]
    if names.count(blank) > 1:
        raise UserError(f"the labels {blank} and {pad} exist beside the blank, which in fairseq is {blank} itself")
    if BOUNDARY in names:
        raise UserError(f"there is a label {BOUNDARY!r}, which is the space in a dictionary of fairseq: expected none")
    dictionary = [*FAIRSEQ_SPECIALS, *(str(name) for name in names if name not in FAIRSEQ_SPECIALS)]
    if wrong := [name for name in dictionary if name != " " and len(name.split()) != 1]:
        raise UserError(f"labels {wrong[:3]} contain white space, which a dictionary of fairseq cannot contain")
    place = {name: number for number, name in enumerate(names)}
    kernel, bias = (np.asarray(weights[name], np.float32) for name in HEAD)
    without = (np.zeros(kernel.shape[1], np.float32), np.float32(NEVER))
    rows = [(kernel[place[name]], bias[place[name]]) if name in place else without for name in dictionary]
    head = dict(zip(HEAD, map(np.stack, zip(*rows, strict=True)), strict=True))
    return {**weights, **head}, [BOUNDARY if name == " " else name for name in dictionary]


def encoder_section(encoder: Wav2Vec2) -> dict[str, Any]:
    """Returns the settings of an encoder by the names that both systems share."""
    encoder = replace(encoder, feedforward_dim=encoder.hidden_dim)
    return {
        "conv_feature_layers": str([tuple(layer) for layer in encoder.extractor]),
        "extractor_mode": "layer_norm" if encoder.extractor_norm == "layer" else "default",
        **written(encoder, ENCODER),
        "activation_fn": _activation(encoder),
        "quantize_targets": True,
        "same_quantizer": False,
        **(_quantizer_section(encoder.input_quantizer, encoder.input_codes_dim) if encoder.quantized_input else {}),
        **_mask_section("mask", encoder.time_mask),
        **_mask_section("mask_channel", encoder.channel_mask),
    }


def contrastive_section(head: Contrastive | None) -> dict[str, Any]:
    """Returns the settings of pre-training by the names that both systems share; empty without it."""
    if head is None:
        return {}
    return {
        "final_dim": head.dim,
        **_quantizer_section(head.quantizer, head.codes_dim),
        **written(head, CONTRASTIVE),
        **({"same_quantizer": True} if head.same_quantizer else {}),
    }


def tuning_section(encoder: Wav2Vec2, model: Model) -> dict[str, Any]:
    """Returns the settings of a fine-tuned model by the names that both systems share; empty without a CTC head."""
    head = next((head for head in model.heads.values() if isinstance(head, CTC)), None)
    if head is None:
        return {}
    names = ("dropout", "attention_dropout", "activation_dropout", "dropout_input", "feature_grad_mult")
    masks = ("mask_prob", "mask_length", "mask_channel_prob", "mask_channel_length", "mask_channel_before")
    section = encoder_section(encoder)
    return {
        **{name: section[name] for name in (*names, *masks)},
        "layerdrop": encoder.layer_drop,
        **written(head, OF_CTC),
        "apply_mask": encoder.time_mask.probability > 0,
        "freeze_finetune_updates": 0,
    }


def _parts(model: Model) -> tuple[Wav2Vec2, Contrastive | None, bool]:
    """Returns the encoder, the head of pre-training (None without one), and whether samples are normalised."""
    encoder, heads = model.encoder, [*model.heads.values()]
    if not isinstance(encoder, Wav2Vec2) or not encoder.extractor or len(heads) > 1:
        raise UserError(
            f"the model has the heads {', '.join(model.heads)}: expected a wav2vec 2.0 that reads samples, with one "
            "CTC head or one contrastive head; use --out NAME.safetensors to write the weights alone"
        )
    contrastive = next((head for head in heads if isinstance(head, Contrastive)), None)
    # Another epsilon changes only recordings that are almost silent.
    normalised = (wav2vec2(normalise=True, eps=FAIRSEQ_EPS), wav2vec2(normalise=True))
    known: tuple[FrontEnd, ...] = (wav2vec2(), *normalised)
    if model.front_end not in known:
        raise UserError("the front-end is not the preset wav2vec2: fairseq and NVIDIA support no other")
    return encoder, contrastive, model.front_end in normalised


def _mask_section(prefix: str, mask: SpanMask) -> dict[str, Any]:
    return {
        **written(mask, of_mask(prefix)),
        f"no_{prefix}_overlap": mask.min_space is not None,
        f"{prefix}_min_space": 1 if mask.min_space is None else mask.min_space,
        **({"require_same_masks": mask.same_count, "mask_dropout": mask.dropout} if prefix == "mask" else {}),
    }


def _quantizer_section(quantizer: Quantizer, codes_dim: int) -> dict[str, Any]:
    return {
        "latent_dim": codes_dim,
        **written(quantizer, QUANTIZER),
        "latent_temp": [quantizer.start_temperature, quantizer.end_temperature, quantizer.decay],
    }


def _activation(encoder: Wav2Vec2) -> str:
    """Returns fairseq's name of the encoder's activation."""
    theirs_of = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    if encoder.activation not in theirs_of:
        raise UserError(f"activation is {encoder.activation}: expected one of {', '.join(theirs_of)}")
    return theirs_of[encoder.activation]


def _history(criterion: str) -> dict[str, Any]:
    return {
        "criterion_name": criterion,
        "optimizer_name": "FairseqAdam",
        "lr_scheduler_state": {"best": None},
        "num_updates": 0,
    }


def _dictionary(symbols: list[str]) -> Mapping[str, Any]:
    """Returns the attributes of fairseq's `Dictionary`."""
    bos, pad, eos, unknown = FAIRSEQ_SPECIALS
    return {
        "bos_word": bos,
        "pad_word": pad,
        "eos_word": eos,
        "unk_word": unknown,
        "symbols": symbols,
        "count": [1] * len(symbols),
        "indices": {symbol: number for number, symbol in enumerate(symbols)},
        "bos_index": 0,
        "pad_index": 1,
        "eos_index": 2,
        "unk_index": 3,
        "nspecial": len(FAIRSEQ_SPECIALS),
    }
