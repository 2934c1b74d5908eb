"""Settings of a wav2vec 2.0 as fairseq, NVIDIA and Hugging Face write them beside its weights."""

import ast
from collections.abc import Mapping
from typing import Any, NamedTuple

from asr_jax.core.errors import UserError
from asr_jax.heads.contrastive import Contrastive
from asr_jax.models.wav2vec2 import BASE_EXTRACTOR, Hourglass, Wav2Vec2
from asr_jax.nn.quantizer import Quantizer
from asr_jax.nn.span_masks import SpanMask
from asr_jax.nn.waveform_convs import ConvLayer
from asr_jax.pretrained.nemo_files import check_settings


class Settings(NamedTuple):
    """What a file says of its model."""

    encoder: Wav2Vec2
    contrastive: Contrastive | None
    """Of pre-training; None where the model has no such head."""
    normalise: bool | None
    """Whether samples are normalised; None where it does not say."""


def settings_of(path: Path) -> Settings:
    """Of a checkpoint of fairseq or NVIDIA (.pt), pre-trained or fine-tuned, or a folder of Hugging Face.

    Raises: UserError where it says nothing of a wav2vec 2.0, or what is not there here.
    """
    if path.is_dir():
        config = read_json(path / "config.json")
        found = settings_of_huggingface(config, path)
        processor = next((path / name for name in PROCESSORS if (path / name).is_file()), None)
        said = read_json(processor) if processor else {}
        return found._replace(normalise=said.get("feature_extractor", said).get("do_normalize"))
    loaded = load_torch(path)
    # Newer files of fairseq have `cfg`, older ones `args`; a fine-tuned model has what it began as within its own.
    said = loaded.get("cfg") or loaded.get("args") if isinstance(loaded, Mapping) else None
    outer = _model_of(said)
    inner = _model_of(outer["w2v_args"]) if outer.get("w2v_args") else {}
    if "conv_feature_layers" not in {**inner, **outer} and "encoder_embed_dim" not in {**inner, **outer}:
        raise UserError(f"{path} says nothing of its model: expected a wav2vec 2.0 of fairseq or NVIDIA, or --init.path alone")
    task = _plain(_plain(said).get("task", {}))
    known = {name: value for name, value in outer.items() if value is not None}
    return settings_of_fairseq({**inner, **known}, path, normalise=task.get("normalize", outer.get("normalize")))


def _model_of(said: Any) -> dict[str, Any]:
    """Of what a file says of a run, the part on its model."""
    plain = _plain(said)
    return _plain(plain["model"]) if isinstance(plain.get("model"), Mapping) else plain


def _plain(said: Any) -> dict[str, Any]:
    """Settings that are a dictionary or attributes of an object."""
    return dict(said) if isinstance(said, Mapping) else dict(getattr(said, "__dict__", {}))


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


def _hourglass(said: str | None, resample: Any) -> Hourglass | None:
    """Of NVIDIA's "[before, (middle, factor), after]"."""
    if not said:
        return None
    before, (middle, factor), after = ast.literal_eval(said)
    return Hourglass(before=before, middle=middle, factor=factor, after=after, resample=resample)


def _mask(said: Mapping[str, Any], prefix: str, *, probability: float, min_spans: int) -> SpanMask:
    return SpanMask(
        probability=said.get(f"{prefix}_prob", probability),
        length=said.get(f"{prefix}_length", 10),
        min_spans=min_spans,
        same_count=said.get("require_same_masks", True) if prefix == "mask" else False,
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


def settings_of_huggingface(said: Mapping[str, Any], path: Any) -> Settings:
    """Of the config.json of a wav2vec 2.0 folder; `path` is where it lies. Names that it does not have are at
    transformers' defaults.

    Raises: UserError where it says what is not there here.
    """
    expected = {
        "model_type": "wav2vec2", "feat_extract_norm": ("group", "layer"), "feat_extract_activation": "gelu",
        "hidden_act": "gelu", "add_adapter": False, "adapter_attn_dim": None, "layer_norm_eps": 1e-5,
    }  # fmt: skip
    check_settings(path, "config", said, expected)
    get = said.get
    sizes = ("conv_dim", (512,) * 7), ("conv_kernel", (10, 3, 3, 3, 3, 2, 2)), ("conv_stride", (5, 2, 2, 2, 2, 2, 2))
    layers = tuple(ConvLayer(*layer) for layer in zip(*(get(name, usual) for name, usual in sizes), strict=True))
    encoder = Wav2Vec2(
        extractor=layers,
        extractor_norm=get("feat_extract_norm", "group"),
        extractor_bias=get("conv_bias", False),
        dim=get("hidden_size", 768),
        num_layers=get("num_hidden_layers", 12),
        num_heads=get("num_attention_heads", 12),
        feedforward_dim=get("intermediate_size", 3072),
        norm_first=get("do_stable_layer_norm", False),
        position_kernel=get("num_conv_pos_embeddings", 128),
        position_groups=get("num_conv_pos_embedding_groups", 16),
        time_mask=_mask_of_huggingface(said, "mask_time", probability=0.05, min_spans=2),
        channel_mask=_mask_of_huggingface(said, "mask_feature", probability=0.0, min_spans=0),
        dropout=get("hidden_dropout", 0.1),
        attention_dropout=get("attention_dropout", 0.1),
        activation_dropout=get("activation_dropout", 0.1),
        input_dropout=get("feat_proj_dropout", 0.0),
        feature_dropout=get("feat_quantizer_dropout", 0.0),
        layer_drop=get("layerdrop", 0.1),
        extractor_gradient=1.0,
        taps=("features", "extractor"),
    )
    contrastive = Contrastive(
        quantizer=Quantizer(get("num_codevector_groups", 2), get("num_codevectors_per_group", 320)),
        codes_dim=get("codevector_dim", 256),
        dim=get("proj_codevector_dim", 256),
        num_negatives=get("num_negatives", 100),
        temperature=get("contrastive_logits_temperature", 0.1),
        diversity=get("diversity_loss_weight", 0.1),
        penalty=0.0,
    )
    return Settings(encoder, contrastive, None)


def _mask_of_huggingface(said: Mapping[str, Any], prefix: str, *, probability: float, min_spans: int) -> SpanMask:
    used = said.get("apply_spec_augment", True)
    return SpanMask(
        probability=said.get(f"{prefix}_prob", probability) if used else 0.0,
        length=said.get(f"{prefix}_length", 10),
        min_spans=said.get(f"{prefix}_min_masks", min_spans),
        same_count=False,
        draws_last_start=True,
    )
