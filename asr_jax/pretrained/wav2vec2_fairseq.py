"""Settings of wav2vec 2.0 in checkpoints of fairseq (commit 3d262bb2) and NVIDIA (DeepLearningExamples, 729963dd)."""

import ast
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.presets import wav2vec2
from asr_jax.core.errors import UserError
from asr_jax.heads.contrastive import Contrastive
from asr_jax.models.wav2vec2 import BASE_EXTRACTOR, Hourglass, Wav2Vec2
from asr_jax.nn.quantizer import Quantizer
from asr_jax.nn.span_masks import SpanMask
from asr_jax.nn.waveform_convs import ConvLayer
from asr_jax.pretrained.base import Description
from asr_jax.pretrained.nemo_files import check_settings
from asr_jax.pretrained.torch_files import Stand, load_torch

FAIRSEQ_EPS = 1e-5
"""Added to the variance where samples are normalised: they have torch's layer norm for it."""


class Settings(NamedTuple):
    """What a file says of its model."""

    encoder: Wav2Vec2
    contrastive: Contrastive | None
    """Of pre-training; None where the model has no such head."""
    normalise: bool | None
    """Whether samples are normalised; None where it does not say."""


def settings_of_checkpoint(path: Path) -> Settings:
    """Of a checkpoint (.pt), pre-trained or fine-tuned.

    Raises: UserError where it says nothing of a wav2vec 2.0, or what is not there here.
    """
    loaded = load_torch(path)
    # Newer files of fairseq have `cfg`, older ones `args`; a fine-tuned model has what it began as within its own.
    said = (loaded.get("cfg") or loaded.get("args")) if isinstance(loaded, Mapping) else None
    outer = _model_of(said)
    inner = _model_of(outer.pop("w2v_args", None))
    settings = inner | {name: value for name, value in outer.items() if value is not None}
    if not {"conv_feature_layers", "encoder_embed_dim"} & settings.keys():
        raise UserError(f"{path} says nothing of its model: expected a wav2vec 2.0 of fairseq or NVIDIA")
    task = _plain(_plain(said).get("task"))
    try:
        return settings_of_fairseq(settings, path, normalise=task.get("normalize", settings.get("normalize")))
    except (ValueError, TypeError, SyntaxError) as error:
        raise UserError(f"{path}: {error}; expected settings of a wav2vec 2.0 of fairseq or NVIDIA") from error


def _model_of(said: Any) -> dict[str, Any]:
    """Of what a file says of a run, the part on its model."""
    plain = _plain(said)
    return _plain(plain["model"]) if _plain(plain.get("model")) else plain


def _plain(said: Any) -> dict[str, Any]:
    """Settings that are a dictionary, attributes of an object, or nodes of OmegaConf's, as stand-ins hold them."""
    held = dict(said) if isinstance(said, Mapping) else dict(getattr(said, "__dict__", {}))
    if isinstance(nodes := held.get("_content"), Mapping):
        return {name: _value(node) for name, node in nodes.items()}
    return held


def _value(node: Any) -> Any:
    """What a node of OmegaConf's holds, of an enumeration its value; one that holds nodes by name stays as it is."""
    held = getattr(node, "__dict__", {})
    if isinstance(nodes := held.get("_content"), list):
        return [_value(each) for each in nodes]
    value = held.get("_val", node)
    return value.args[0] if isinstance(value, Stand) and hasattr(value, "args") else value


def settings_of_fairseq(said: Mapping[str, Any], path: Any, *, normalise: bool | None = None) -> Settings:
    """Of the model's settings in a file of fairseq or NVIDIA; `path` is where they come from. Names that a file does
    not have are at fairseq's defaults.

    Raises: UserError where it says what is not there here.
    """
    expected = {
        "extractor_mode": ("default", "layer_norm"), "activation_fn": "gelu", "layer_type": "transformer",
        "quantize_targets": True, "quantize_input": False, "same_quantizer": False, "pos_conv_depth": 1,
        "no_mask_overlap": False, "no_mask_channel_overlap": False, "mask_dropout": 0.0, "attn_type": "",
        "pos_enc_type": "abs", "adp_num": (-1, None), "use_spectrogram_features": False,
        "hourglass_resample": ("naive", "linear"), "mha": ("fairseq", "pyt"),
    }  # fmt: skip
    check_settings(path, "model", said, expected)
    get = said.get
    layers = conv_layers(get("conv_feature_layers"), path)
    dim = get("encoder_embed_dim", 768)
    encoder = Wav2Vec2(
        extractor=layers,
        extractor_norm="layer" if get("extractor_mode", "default") == "layer_norm" else "group",
        extractor_bias=get("conv_bias", False),
        projected=layers[-1].channels != dim,
        dim=dim,
        num_layers=get("encoder_layers", 12),
        num_heads=get("encoder_attention_heads", 12),
        feedforward_dim=get("encoder_ffn_embed_dim", 3072),
        norm_first=get("layer_norm_first", False),
        position_kernel=get("conv_pos", 128),
        position_groups=get("conv_pos_groups", 16),
        rotary=get("rotary_embeddings", False),
        hourglass=_hourglass(get("hourglass_transformer"), get("hourglass_resample", "naive")),
        time_mask=_mask(said, "mask", probability=0.65, min_spans=2),
        channel_mask=_mask(said, "mask_channel", probability=0.0, min_spans=0),
        channel_mask_first=get("mask_channel_before", False),
        dropout=get("dropout", 0.1),
        attention_dropout=get("attention_dropout", 0.1),
        activation_dropout=get("activation_dropout", 0.0),
        input_dropout=get("dropout_input", 0.0),
        feature_dropout=get("dropout_features", 0.0),
        layer_drop=get("encoder_layerdrop", 0.05),
        extractor_gradient=get("feature_grad_mult", 1.0),
        taps=("features", "extractor"),
    )
    return Settings(encoder, _contrastive(said, dim), normalise)


def conv_layers(said: str | None, path: Any) -> tuple[ConvLayer, ...]:
    """Convolutions of fairseq's expression, such as "[(512, 10, 5)] + [(512, 3, 2)] * 4"; without it, Base's.

    Raises: UserError where it is none.
    """
    if said is None:
        return BASE_EXTRACTOR
    try:
        return tuple(ConvLayer(*map(int, layer)) for layer in _evaluated(ast.parse(said, mode="eval").body))
    except (SyntaxError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: conv_feature_layers is {said!r}: expected lists of (channels, taps, stride), added and repeated"
        ) from error


def _evaluated(node: ast.AST) -> Any:
    """Lists of numbers, added and repeated: nothing of a file is run."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _evaluated(node.left) + _evaluated(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _evaluated(node.left) * _evaluated(node.right)
    return ast.literal_eval(node)


def _hourglass(said: str | None, resample: Any) -> Hourglass:
    """Of NVIDIA's "[before, (middle, factor), after]"."""
    if not said:
        return Hourglass()
    try:
        before, (middle, factor), after = ast.literal_eval(said)
    except (ValueError, TypeError, SyntaxError) as error:
        raise ValueError(f"hourglass_transformer is {said!r}, expected [before, (middle, factor), after]") from error
    return Hourglass(before=before, middle=middle, factor=factor, after=after, resample=resample)


def _mask(said: Mapping[str, Any], prefix: str, *, probability: float, min_spans: int) -> SpanMask:
    return SpanMask(
        probability=said.get(f"{prefix}_prob", probability),
        length=said.get(f"{prefix}_length", 10),
        min_spans=min_spans,
        same_count=said.get("require_same_masks", True),
        selection=said.get(f"{prefix}_selection", "static"),
        other=said.get(f"{prefix}_other", 0.0),
    )


def _contrastive(said: Mapping[str, Any], dim: int) -> Contrastive:
    final = said.get("final_dim", 0) or dim
    start, end, decay = _temperatures(said.get("latent_temp", (2.0, 0.5, 0.999995)))
    return Contrastive(
        quantizer=Quantizer(
            groups=said.get("latent_groups", 2),
            entries=said.get("latent_vars", 320),
            depth=said.get("quantizer_depth", 1),
            factor=said.get("quantizer_factor", 3),
            start_temperature=start,
            end_temperature=end,
            decay=decay,
        ),
        codes_dim=said.get("latent_dim", 0) or final,
        dim=final,
        num_negatives=said.get("num_negatives", 100),
        across_negatives=said.get("cross_sample_negatives", 0),
        codebook_negatives=said.get("codebook_negatives", 0),
        from_everywhere=said.get("negatives_from_everywhere", False),
        gated_targets=said.get("target_glu", False),
        temperature=said.get("logit_temp", 0.1),
    )


def _temperatures(said: Any) -> tuple[float, float, float]:
    return tuple(ast.literal_eval(said) if isinstance(said, str) else said)


def front_end_of(settings: Settings, *, eps: float) -> FrontEnd:
    """The preset `wav2vec2`: it normalises where the file says so, or says nothing and has its norms first."""
    normalises = settings.normalise if settings.normalise is not None else settings.encoder.norm_first
    return wav2vec2(normalise=normalises, eps=eps)


def _encoder_of(path: Path, **changes: Any) -> Wav2Vec2:
    return replace(settings_of_checkpoint(path).encoder, **changes)


DESCRIPTIONS = (
    Description(
        ".pt", lambda path: path.suffix == ".pt", _encoder_of,
        lambda path: front_end_of(settings_of_checkpoint(path), eps=FAIRSEQ_EPS),
    ),
)  # fmt: skip
