"""FunASR's Paraformer: settings, front-end, labels and weights in a folder of its model hub.

Source: modelscope/FunASR at commit 3c58cb56: funasr/models/paraformer, funasr/models/paraformer_v2_community,
funasr/models/sanm, funasr/frontends/wav_frontend.py.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asr_jax.audio.features import FrontEnd, KaldiFbank
from asr_jax.audio.stages import NormaliseByDataSet, Stack
from asr_jax.core.batch import OUTPUT
from asr_jax.core.errors import UserError
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer import Paraformer
from asr_jax.heads.paraformer_v2 import ParaformerV2
from asr_jax.models.sanm import SANM
from asr_jax.nn.cif import CIF
from asr_jax.nn.parallel_decoder import SANMDecoder
from asr_jax.pretrained.base import NamedWeights, Paths
from asr_jax.pretrained.funasr_files import STATISTICS
from asr_jax.pretrained.keymap import CONV_1D, DEPTHWISE, LINEAR, SAME, Layout, Row, export_params, find_params

MODELS = ("Paraformer", "BiCifParaformer", "Paraformer_v2_community")
PREDICTORS = {"CifPredictor": "depthwise", "CifPredictorV2": "full", "CifPredictorV3": "full"}
"""FunASR's classes of predictors, and their kind here."""
UNUSED = r"decoder\.embed\.0\.weight|predictor\.(upsample_cnn|blstm|self_attn|cif_output2)\..*"
"""Weights of FunASR's files that texts do not depend on: embeddings of labels without a sampler, and the second
integration of BiCifParaformer, for times."""
HEAD = "paraformer"

Config = Mapping[str, Any]


def settings_of(config: Config, where: str) -> tuple[SANM, dict[str, HeadSettings]]:
    """Returns the settings of encoder and heads. The Paraformer head is the first one.

    Args:
        config: Content of config.yaml.
        where: Path of the file, for messages.

    Raises:
        UserError: If a setting is not supported.
    """
    model, of_model = config.get("model"), config.get("model_conf") or {}
    if model not in MODELS:
        raise UserError(f"{where}: model is {model!r}: expected one of {', '.join(MODELS)}")
    is_first = model != "Paraformer_v2_community"
    decoder_class = "ParaformerSANMDecoder" if is_first else "ParaformerSANMDecoder_v2_community"
    for key, expected in (("encoder", "SANMEncoder"), ("decoder", decoder_class)):
        if config.get(key) != expected:
            raise UserError(f"{where}: {key} is {config.get(key)!r}: expected {expected!r}")
    weight = of_model.get("ctc_weight", 0.5)
    shared: dict[str, Any] = {
        "decoder": _decoder(config.get("decoder_conf") or {}, where),
        "smoothing": of_model.get("lsm_weight", 0.0),
        "weight_by": "labels" if of_model.get("length_normalized_loss") else "utterances",
    }
    begin, end = of_model.get("sos", 1), of_model.get("eos", 2)
    if of_model.get("blank_id", 0) != 0:
        raise UserError(f"{where}: model_conf.blank_id is {of_model['blank_id']}: expected 0")
    head: HeadSettings
    if is_first:
        head = Paraformer(
            predictor=_predictor(config, where), sampling=of_model.get("sampling_ratio", 0.2),
            shares_embedding=bool(of_model.get("share_embedding", False)), label_scale=1.0 - weight,
            quantity_scale=of_model.get("predictor_weight", 0.0), ends=bool(of_model.get("predictor_bias", 0)),
            end_id=end, dropped_ids=tuple(dict.fromkeys((begin, end))), **shared,
        )  # fmt: skip
    else:
        if not weight:
            raise UserError(f"{where}: model_conf.ctc_weight is 0: expected a model with CTC, which the queries are of")
        head = ParaformerV2(
            queries="normed", scale=1.0 - weight, dropped_ids=tuple(dict.fromkeys((begin, end))), **shared
        )
    heads: dict[str, HeadSettings] = {HEAD: head}
    if weight:
        of_ctc = config.get("ctc_conf") or {}
        heads["ctc"] = CTC(dropout=of_ctc.get("dropout_rate", 0.0), weight_by="utterances", scale=weight)
    return _encoder(config, where), heads


def _taken(given: Config, used: Mapping[str, str], fixed: Config, where: str) -> dict[str, Any]:
    """Returns the fields that settings name.

    Args:
        given: Settings of a module.
        used: Our field for each of FunASR's settings.
        fixed: Settings that only one value is supported of.
        where: Path of the file and of the settings, for messages.

    Raises:
        UserError: If another value is given.
    """
    for name, value in fixed.items():
        if given.get(name, value) != value:
            raise UserError(f"{where}.{name} is {given[name]!r}: expected {value!r}, the only supported value")
    return {ours: given[theirs] for theirs, ours in used.items() if given.get(theirs) is not None}


SIZES = {
    "attention_heads": "num_heads", "linear_units": "feedforward_dim", "num_blocks": "num_layers",
    "dropout_rate": "dropout", "kernel_size": "kernel_size", "sanm_shfit": "memory_shift",
}  # fmt: skip
"""Our fields for settings of both encoder and decoder."""
DEFAULTS = {"attention_heads": 4, "linear_units": 2048, "num_blocks": 6, "dropout_rate": 0.1}


def _encoder(config: Config, where: str) -> SANM:
    given = {"output_size": 256, "attention_dropout_rate": 0.0, **DEFAULTS, **(config.get("encoder_conf") or {})}
    used = {
        **SIZES, "output_size": "dim", "attention_dropout_rate": "attention_dropout", "normalize_before": "norm_first",
    }  # fmt: skip
    fixed = {"input_layer": "pe", "concat_after": False, "selfattention_layer_type": "sanm", "lora_list": None}
    if given.get("input_layer", "conv2d") != "pe":
        raise UserError(f"{where}: encoder_conf.input_layer is {given.get('input_layer')!r}: expected 'pe'")
    front_end = config.get("frontend_conf") or {}
    input_dim = config.get("input_size") or front_end.get("n_mels", 80) * front_end.get("lfr_m", 1)
    return SANM(input_dim=input_dim, **_taken(given, used, fixed, f"{where}: encoder_conf"))


def _decoder(given: Config, where: str) -> SANMDecoder:
    given = {
        "att_layer_num": 6, "kernel_size": 21, "self_attention_dropout_rate": 0.0, "src_attention_dropout_rate": 0.0,
        **DEFAULTS, **given,
    }  # fmt: skip
    if given.get("sanm_shfit", 0) is None:
        given["sanm_shfit"] = (given["kernel_size"] - 1) // 2
    given["num_blocks"] = max(given["num_blocks"], given["att_layer_num"])
    used = {
        **SIZES, "att_layer_num": "num_attention_layers", "self_attention_dropout_rate": "memory_dropout",
        "src_attention_dropout_rate": "attention_dropout",
    }  # fmt: skip
    fixed = {
        "concat_after": False, "normalize_before": True, "use_output_layer": True, "wo_input_layer": False,
        "lora_list": None,
    }  # fmt: skip
    return SANMDecoder(**_taken(given, used, fixed, f"{where}: decoder_conf"))


def _predictor(config: Config, where: str) -> CIF:
    kind = config.get("predictor")
    if kind not in PREDICTORS:
        raise UserError(f"{where}: predictor is {kind!r}: expected one of {', '.join(PREDICTORS)}")
    tail = 0.45 if kind == "CifPredictor" else 0.0
    given = {"tail_threshold": tail, **(config.get("predictor_conf") or {})}
    used = {
        "l_order": "before", "r_order": "after", "smooth_factor": "smooth_factor", "noise_threshold": "noise_threshold",
        "tail_threshold": "tail", "dropout": "dropout",
    }  # fmt: skip
    fields = _taken(given, used, {"threshold": 1.0}, f"{where}: predictor_conf")
    return CIF(kind=PREDICTORS[kind], **fields)  # type: ignore[arg-type]


def front_end_of(config: Config, folder: Path, where: str) -> FrontEnd:
    """Returns the front-end, with the statistics in the folder's am.mvn or in the file that the settings name.

    Args:
        config: Content of config.yaml.
        where: Path of the file, for messages.

    Raises:
        UserError: If a setting is not supported, or the statistics cannot be read.
    """
    if (kind := config.get("frontend", "WavFrontend")) not in ("WavFrontend", "wav_frontend"):
        raise UserError(f"{where}: frontend is {kind!r}: expected 'WavFrontend'")
    given = config.get("frontend_conf") or {}
    num, every = given.get("lfr_m", 1), given.get("lfr_n", 1)
    then: list[Any] = [Stack(num, every, ends="copies")] if (num, every) != (1, 1) else []
    statistics = folder / Path(given.get("cmvn_file") or STATISTICS).name
    if given.get("cmvn_file") or statistics.is_file():
        then.append(NormaliseByDataSet.of_kaldi(statistics))
    used = {"fs": "rate_hz", "window": "window", "n_mels": "num_mels", "snip_edges": "snip_edges"}
    fields: dict[str, Any] = {"window": "hamming", "snip_edges": True}
    fields |= {"window_ms": float(given.get("frame_length", 25)), "hop_ms": float(given.get("frame_shift", 10))}
    fields |= _taken(given, used, {}, f"{where}: frontend_conf")
    scale = 32768.0 if given.get("upsacle_samples", True) else 1.0
    return KaldiFbank(high_hz=0.0, scale=scale, padding=0.0, then=tuple(then), **fields)


def rows_of(encoder: SANM, heads: Mapping[str, HeadSettings]) -> list[Row]:
    """Returns the table of names of an encoder and its heads."""
    rows = list(_encoder_rows(encoder))
    for name, head in heads.items():
        path = f"params/heads_{name}"
        if isinstance(head, CTC):
            rows += _linear("ctc.ctc_lo", f"{path}/output")
        elif isinstance(head, Paraformer | ParaformerV2) and isinstance(head.decoder, SANMDecoder):
            rows += _decoder_rows(head.decoder, f"{path}/decoder")
            rows += _linear("decoder.output_layer", f"{path}/output")
            rows += _input_rows(head, path)
    return rows


def _input_rows(head: HeadSettings, path: str) -> Iterator[Row]:
    """Yields the names of the layers before the decoder."""
    if isinstance(head, ParaformerV2):
        yield from _linear("decoder.embed.0", f"{path}/query/linear")
        yield from _norm("decoder.embed.1", f"{path}/query/norm")
    if isinstance(head, Paraformer):
        yield Row("predictor.cif_conv1d.weight", f"{path}/predictor/convolution/kernel", CONV_1D)
        yield Row("predictor.cif_conv1d.bias", f"{path}/predictor/convolution/bias")
        yield from _linear("predictor.cif_output", f"{path}/predictor/output")
        if head.sampling and not head.shares_embedding:
            yield Row("decoder.embed.0.weight", f"{path}/embedding/embedding")


def _encoder_rows(encoder: SANM) -> Iterator[Row]:
    ours = "params/encoder"
    yield from _encoder_layer("encoder.encoders0.0", f"{ours}/first", None)
    for number in range(encoder.num_layers - 1):
        yield from _encoder_layer(f"encoder.encoders.{number}", f"{ours}/layers", number)
    if encoder.norm_first:
        yield from _norm("encoder.after_norm", f"{ours}/norm")


def _encoder_layer(theirs: str, ours: str, layer: int | None) -> Iterator[Row]:
    yield from _norm(f"{theirs}.norm1", f"{ours}/attention_norm", layer)
    yield from _norm(f"{theirs}.norm2", f"{ours}/norm", layer)
    yield from _linear(f"{theirs}.self_attn.linear_q_k_v", f"{ours}/attention/in", layer)
    yield from _linear(f"{theirs}.self_attn.linear_out", f"{ours}/attention/out", layer)
    yield Row(f"{theirs}.self_attn.fsmn_block.weight", f"{ours}/attention/memory/kernel", DEPTHWISE, layer)
    yield from _linear(f"{theirs}.feed_forward.w_1", f"{ours}/in", layer)
    yield from _linear(f"{theirs}.feed_forward.w_2", f"{ours}/out", layer)


def _decoder_rows(decoder: SANMDecoder, ours: str) -> Iterator[Row]:
    num_with = decoder.num_attention_layers
    for number in range(num_with):
        theirs = f"decoder.decoders.{number}"
        yield from _decoder_layer(theirs, f"{ours}/layers", number)
        yield from _norm(f"{theirs}.norm3", f"{ours}/layers/attention_norm", number)
        for name, own in (("linear_q", "query"), ("linear_k_v", "key_value"), ("linear_out", "out")):
            yield from _linear(f"{theirs}.src_attn.{name}", f"{ours}/layers/attention/{own}", number)
    for number in range(decoder.num_layers - num_with):
        yield from _decoder_layer(f"decoder.decoders2.{number}", f"{ours}/memory_layers", number)
    yield from _norm("decoder.decoders3.0.norm1", f"{ours}/last_norm")
    yield from _feed_forward("decoder.decoders3.0.feed_forward", f"{ours}/last")
    yield from _norm("decoder.after_norm", f"{ours}/norm")


def _decoder_layer(theirs: str, ours: str, layer: int) -> Iterator[Row]:
    yield from _norm(f"{theirs}.norm1", f"{ours}/norm", layer)
    yield from _norm(f"{theirs}.norm2", f"{ours}/memory_norm", layer)
    yield from _feed_forward(f"{theirs}.feed_forward", f"{ours}/feed_forward", layer)
    yield Row(f"{theirs}.self_attn.fsmn_block.weight", f"{ours}/memory/kernel", DEPTHWISE, layer)


def _feed_forward(theirs: str, ours: str, layer: int | None = None) -> Iterator[Row]:
    yield from _linear(f"{theirs}.w_1", f"{ours}/in", layer)
    yield from _norm(f"{theirs}.norm", f"{ours}/norm", layer)
    yield Row(f"{theirs}.w_2.weight", f"{ours}/out/kernel", LINEAR, layer)


def _linear(theirs: str, ours: str, layer: int | None = None) -> Iterator[Row]:
    return _pair(theirs, (f"{ours}/kernel", LINEAR), f"{ours}/bias", layer)


def _norm(theirs: str, ours: str, layer: int | None = None) -> Iterator[Row]:
    return _pair(theirs, (f"{ours}/scale", SAME), f"{ours}/bias", layer)


def _pair(theirs: str, weight: tuple[str, Layout], bias: str, layer: int | None) -> Iterator[Row]:
    yield Row(f"{theirs}.weight", *weight, layer)
    yield Row(f"{theirs}.bias", bias, SAME, layer)


def find(weights: NamedWeights, encoder: SANM, *, heads: Mapping[str, HeadSettings]) -> Paths:
    """Returns the weights by parameter path, and the names of the weights that the model does not have.

    Args:
        weights: Weights of a model.pt.

    Raises:
        UserError: If a weight is missing.
    """
    found = find_params(weights, rows_of(encoder, heads))
    if found.missing:
        raise UserError(
            f"{len(found.missing)} weights are missing: {', '.join(found.missing[:3])}; expected a model.pt of these "
            "settings"
        )
    return found.params, found.left


def export(variables: Any, encoder: SANM, *, heads: Mapping[str, HeadSettings]) -> dict[str, Any]:
    """Returns the weights under FunASR's names.

    Args:
        variables: `{"params": …}`.

    Raises:
        UserError: If FunASR has no name for a parameter, or does not have these heads.
    """
    check_heads(heads)
    return export_params({"params": variables["params"]}, rows_of(encoder, heads))


def check_heads(heads: Mapping[str, HeadSettings]) -> None:
    """Checks that there are at most a Paraformer head and a CTC head, both on the encoder's output.

    Raises:
        UserError: If there are others.
    """
    for kind, has in ((CTC, "CTC head"), (Paraformer | ParaformerV2, "Paraformer head")):
        names = [name for name, head in heads.items() if isinstance(head, kind)]
        if len(names) > 1:
            raise UserError(f"the model has the heads {', '.join(names)}: expected one {has}, as in FunASR")
    for name, head in heads.items():
        if not isinstance(head, CTC | Paraformer | ParaformerV2):
            raise UserError(f"FunASR has no head {name} ({type(head).__name__}): expected a Paraformer and a CTC head")
        if head.tap != OUTPUT:
            raise UserError(f"head {name} reads the tap {head.tap!r}: expected the encoder's output, as in FunASR")
