"""FunASR's Paraformer: settings, front-end, labels and weights in a folder of its model hub.

Source: modelscope/FunASR at commit 3c58cb56: funasr/models/paraformer, funasr/models/paraformer_v2_community,
funasr/models/sanm, funasr/frontends/wav_frontend.py.
"""

from collections.abc import Mapping
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
from asr_jax.models.base import Model
from asr_jax.models.sanm import SANM
from asr_jax.nn.decoders.cif import CIF
from asr_jax.nn.decoders.parallel_decoder import SANMDecoder
from asr_jax.pretrained.base import Heads, check_settings
from asr_jax.pretrained.funasr_files import STATISTICS
from asr_jax.pretrained.keymap import CONV_1D, DEPTHWISE, LINEAR, NORM, Row, array, kernel, rows_of

MODELS = ("Paraformer", "BiCifParaformer", "Paraformer_v2_community")
DECODERS = ("ParaformerSANMDecoder_v2_community", "ParaformerSANMDecoder")
PREDICTORS = {"CifPredictor": "depthwise", "CifPredictorV2": "full", "CifPredictorV3": "full"}
"""FunASR's classes of predictors, and their kind here."""
UNUSED = r"decoder\.embed\.0\.weight|predictor\.(upsample_cnn|blstm|self_attn|cif_output2)\..*"
"""Weights of FunASR's files that texts do not depend on: embeddings of labels without a sampler, and the second
integration of BiCifParaformer, for times."""
HEAD = "paraformer"

Config = Mapping[str, Any]


def settings_of(config: Config, where: str) -> tuple[SANM, dict[str, HeadSettings]]:
    """Returns the settings of encoder and heads. The Paraformer head is the first one.

    Raises:
        UserError: If a setting is not supported.
    """
    of_model = config.get("model_conf") or {}
    is_first = config.get("model") != MODELS[-1]
    classes = {"model": MODELS, "encoder": "SANMEncoder", "decoder": DECODERS[is_first]}
    check_settings(f"{where}: config", {name: config.get(name) for name in classes}, **classes)
    check_settings(f"{where}: model_conf", of_model, blank_id=0)
    weight = of_model.get("ctc_weight", 0.5)
    shared: dict[str, Any] = {
        "decoder": _decoder(config.get("decoder_conf") or {}, where),
        "smoothing": of_model.get("lsm_weight", 0.0),
        "weight_by": "labels" if of_model.get("length_normalized_loss") else "utterances",
    }
    begin, end = of_model.get("sos", 1), of_model.get("eos", 2)
    head: HeadSettings
    if is_first:
        head = Paraformer(
            predictor=_predictor(config, where),
            sampling=of_model.get("sampling_ratio", 0.2),
            shares_embedding=bool(of_model.get("share_embedding", False)),
            label_scale=1.0 - weight,
            quantity_scale=of_model.get("predictor_weight", 0.0),
            ends=bool(of_model.get("predictor_bias", 0)),
            end_id=end,
            dropped_ids=tuple(dict.fromkeys((begin, end))),
            **shared,
        )
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


def _fields(given: Config, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields that settings contain; `names` has FunASR's name of each."""
    return {ours: given[theirs] for ours, theirs in names.items() if given.get(theirs) is not None}


LAYER_FIELDS = {
    "num_heads": "attention_heads",
    "feedforward_dim": "linear_units",
    "num_layers": "num_blocks",
    "dropout": "dropout_rate",
    "kernel_size": "kernel_size",
    "memory_shift": "sanm_shfit",
}
"""FunASR's names of settings that encoder and decoder have."""
ENCODER_FIELDS = {
    **LAYER_FIELDS,
    "dim": "output_size",
    "attention_dropout": "attention_dropout_rate",
    "norm_first": "normalize_before",
}
DECODER_FIELDS = {
    **LAYER_FIELDS,
    "num_attention_layers": "att_layer_num",
    "memory_dropout": "self_attention_dropout_rate",
    "attention_dropout": "src_attention_dropout_rate",
}
PREDICTOR_FIELDS = {
    "before": "l_order",
    "after": "r_order",
    "smooth_factor": "smooth_factor",
    "noise_threshold": "noise_threshold",
    "tail": "tail_threshold",
    "dropout": "dropout",
}
FRONT_END_FIELDS = {"rate_hz": "fs", "window": "window", "num_mels": "n_mels", "snip_edges": "snip_edges"}
DEFAULTS = {"attention_heads": 4, "linear_units": 2048, "num_blocks": 6, "dropout_rate": 0.1}


def _encoder(config: Config, where: str) -> SANM:
    given = {
        "input_layer": "conv2d",
        "output_size": 256,
        "attention_dropout_rate": 0.0,
        **DEFAULTS,
        **(config.get("encoder_conf") or {}),
    }
    check_settings(
        f"{where}: encoder_conf",
        given,
        input_layer="pe",
        concat_after=False,
        selfattention_layer_type="sanm",
        lora_list=None,
    )
    front_end = config.get("frontend_conf") or {}
    num_mels = config.get("input_size") or front_end.get("n_mels", 80) * front_end.get("lfr_m", 1)
    return SANM(num_mels=num_mels, **_fields(given, ENCODER_FIELDS))


def _decoder(given: Config, where: str) -> SANMDecoder:
    given = {
        "att_layer_num": 6,
        "kernel_size": 21,
        "self_attention_dropout_rate": 0.0,
        "src_attention_dropout_rate": 0.0,
        **DEFAULTS,
        **given,
    }
    check_settings(
        f"{where}: decoder_conf",
        given,
        concat_after=False,
        normalize_before=True,
        use_output_layer=True,
        wo_input_layer=False,
        lora_list=None,
    )
    if given.get("sanm_shfit", 0) is None:
        given["sanm_shfit"] = (given["kernel_size"] - 1) // 2
    given["num_blocks"] = max(given["num_blocks"], given["att_layer_num"])
    return SANMDecoder(**_fields(given, DECODER_FIELDS))


def _predictor(config: Config, where: str) -> CIF:
    kind = config.get("predictor")
    check_settings(f"{where}: config", {"predictor": kind}, predictor=tuple(PREDICTORS))
    given = {"tail_threshold": 0.45 if kind == "CifPredictor" else 0.0, **(config.get("predictor_conf") or {})}
    check_settings(f"{where}: predictor_conf", given, threshold=1.0)
    return CIF(kind=PREDICTORS[kind], **_fields(given, PREDICTOR_FIELDS))  # type: ignore[index, arg-type]


def front_end_of(config: Config, folder: Path | None, where: str) -> FrontEnd:
    """Returns the front-end, with the statistics in the folder's am.mvn or in the file that the settings name.

    Args:
        folder: Folder with the statistics. None: without statistics.

    Raises:
        UserError: If a setting is not supported, or the statistics cannot be read.
    """
    check_settings(f"{where}: config", config, frontend=("WavFrontend", "wav_frontend"))
    given = config.get("frontend_conf") or {}
    num, every = given.get("lfr_m", 1), given.get("lfr_n", 1)
    then: list[Any] = [Stack(num, every, ends="copies")] if (num, every) != (1, 1) else []
    statistics = folder / Path(given.get("cmvn_file") or STATISTICS).name if folder else None
    if statistics and (given.get("cmvn_file") or statistics.is_file()):
        then.append(NormaliseByDataSet.of_kaldi(statistics))
    fields: dict[str, Any] = {"window": "hamming", "snip_edges": True}
    fields |= {"window_ms": float(given.get("frame_length", 25)), "hop_ms": float(given.get("frame_shift", 10))}
    fields |= _fields(given, FRONT_END_FIELDS)
    scale = 32768.0 if given.get("upsacle_samples", True) else 1.0
    return KaldiFbank(high_hz=0.0, scale=scale, padding=0.0, then=tuple(then), **fields)


ENCODER_LAYER = (
    ("norm1", "attention_norm", NORM),
    ("norm2", "norm", NORM),
    ("self_attn.linear_q_k_v", "attention/in", LINEAR),
    ("self_attn.linear_out", "attention/out", LINEAR),
    ("self_attn.fsmn_block", "attention/memory", kernel(DEPTHWISE)),
    ("feed_forward.w_1", "in", LINEAR),
    ("feed_forward.w_2", "out", LINEAR),
)
FEED_FORWARD = (
    ("feed_forward.w_1", "feed_forward/in", LINEAR),
    ("feed_forward.norm", "feed_forward/norm", NORM),
    ("feed_forward.w_2", "feed_forward/out", kernel(LINEAR)),
)
MEMORY_LAYER = (
    *FEED_FORWARD,
    ("norm1", "norm", NORM),
    ("norm2", "memory_norm", NORM),
    ("self_attn.fsmn_block", "memory", kernel(DEPTHWISE)),
)
ATTENTION_LAYER = (
    *MEMORY_LAYER,
    ("norm3", "attention_norm", NORM),
    ("src_attn.linear_q", "attention/query", LINEAR),
    ("src_attn.linear_k_v", "attention/key_value", LINEAR),
    ("src_attn.linear_out", "attention/out", LINEAR),
)
DECODER_END = (
    ("decoders3.0.norm1", "decoder/last_norm", NORM),
    ("decoders3.0.feed_forward.w_1", "decoder/last/in", LINEAR),
    ("decoders3.0.feed_forward.norm", "decoder/last/norm", NORM),
    ("decoders3.0.feed_forward.w_2", "decoder/last/out", kernel(LINEAR)),
    ("after_norm", "decoder/norm", NORM),
    ("output_layer", "output", LINEAR),
)
QUERY = (
    ("decoder.embed.0", "query/linear", LINEAR),
    ("decoder.embed.1", "query/norm", NORM),
)
PREDICTOR = (
    ("predictor.cif_conv1d", "predictor/convolution", CONV_1D),
    ("predictor.cif_output", "predictor/output", LINEAR),
)
EMBEDDING = (("decoder.embed.0.weight", "embedding/embedding", array()),)


def rows(encoder: SANM, heads: Heads) -> list[Row]:
    """Returns the table of names of an encoder and its heads."""
    table = rows_of(ENCODER_LAYER, "encoder.encoders0.0", "encoder/first")
    for layer in range(encoder.num_layers - 1):
        table += rows_of(ENCODER_LAYER, f"encoder.encoders.{layer}", "encoder/layers", layer)
    if encoder.norm_first:
        table += rows_of([("encoder.after_norm", "encoder/norm", NORM)])
    for path, head in heads.items():
        if isinstance(head, CTC):
            table += rows_of([("ctc.ctc_lo", "output", LINEAR)], ours=path)
        elif isinstance(head, Paraformer | ParaformerV2) and isinstance(head.decoder, SANMDecoder):
            table += _decoder_rows(head.decoder, path)
            table += rows_of(PREDICTOR if isinstance(head, Paraformer) else QUERY, ours=path)
            if isinstance(head, Paraformer) and head.sampling and not head.shares_embedding:
                table += rows_of(EMBEDDING, ours=path)
    return table


def _decoder_rows(decoder: SANMDecoder, path: str) -> list[Row]:
    table, num_with = rows_of(DECODER_END, "decoder", path), decoder.num_attention_layers
    for layer in range(num_with):
        table += rows_of(ATTENTION_LAYER, f"decoder.decoders.{layer}", f"{path}/decoder/layers", layer)
    for layer in range(decoder.num_layers - num_with):
        table += rows_of(MEMORY_LAYER, f"decoder.decoders2.{layer}", f"{path}/decoder/memory_layers", layer)
    return table


def check_heads(model: Model) -> None:
    """Checks that a model has at most a Paraformer head and a CTC head, both on the encoder's output.

    Raises:
        UserError: If there are others.
    """
    for kind, has in ((CTC, "CTC head"), (Paraformer | ParaformerV2, "Paraformer head")):
        names = [name for name, head in model.heads.items() if isinstance(head, kind)]
        if len(names) > 1:
            raise UserError(f"the model has the heads {', '.join(names)}: expected one {has}, as in FunASR")
    for name, head in model.heads.items():
        if not isinstance(head, CTC | Paraformer | ParaformerV2):
            raise UserError(f"FunASR has no head {name} ({type(head).__name__}): expected a Paraformer and a CTC head")
        if head.tap != OUTPUT:
            raise UserError(f"head {name} reads the tap {head.tap!r}: expected the encoder's output, as in FunASR")
