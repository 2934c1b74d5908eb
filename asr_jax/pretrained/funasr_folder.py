"""Folders of FunASR's model hub: config.yaml, model.pt, am.mvn and the list of tokens, read and written."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from asr_jax.audio.features import FrontEnd, KaldiFbank
from asr_jax.audio.stages import NormaliseByDataSet, Stack
from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer import Paraformer
from asr_jax.heads.paraformer_v2 import ParaformerV2
from asr_jax.models.base import Model
from asr_jax.models.sanm import SANM
from asr_jax.nn.parallel_decoder import SANMDecoder
from asr_jax.pretrained.base import Description, Format, NamedWeights, Symbols
from asr_jax.pretrained.funasr import (
    HEAD,
    PREDICTORS,
    UNUSED,
    Config,
    check_heads,
    export,
    find,
    front_end_of,
    settings_of,
)  # fmt: skip
from asr_jax.pretrained.funasr_files import CONFIG, HUB, STATISTICS, WEIGHTS, is_folder
from asr_jax.pretrained.torch_writer import save_torch
from asr_jax.text.base import Tokenizer
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.mixed import UNWRITTEN, MixedTokenizer
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.spelling import Spelling

TOKENS = ("tokens.json", "tokens.txt", "units.txt")
PIECES, PIECES_CLASS = "bpe.model", "SentencepiecesTokenizer"
SPACE, BLANK, UNKNOWN = "<space>", "<blank>", "<unk>"


def config_of(folder: Path) -> Config:
    """Returns the content of config.yaml.

    Raises:
        UserError: If it cannot be read.
    """
    try:
        config = yaml.safe_load((folder / CONFIG).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{folder / CONFIG} cannot be read: {error}") from error
    if not isinstance(config, Mapping):
        raise UserError(f"{folder / CONFIG} is {config!r}: expected the settings of a model")
    return config


def tokenizer_of(folder: Path, given: Tokenizer | None) -> Tokenizer:
    """Returns a given tokenizer, or that of the folder; label 0 is the blank.

    A list of tokens without a label for the space has words and pieces of words, which texts have spaces between.

    Args:
        given: Another tokenizer; None for that of the folder.

    Raises:
        UserError: If the folder has none, or it cannot be read.
    """
    if given is not None:
        return given
    config = config_of(folder)
    if config.get("tokenizer") == PIECES_CLASS:
        name = Path((config.get("tokenizer_conf") or {}).get("bpemodel") or PIECES).name
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} does not exist: expected the SentencePiece model of the tokenizer")
        return SentencePieceTokenizer.of_model((folder / name).read_bytes(), normaliser="none", blank_id=0)
    symbols = _tokens(folder, config)
    listed = (None, *(" " if symbol == SPACE else symbol for symbol in symbols[1:]))
    if len(set(listed)) != len(listed):
        raise UserError(f"{folder} lists a token twice: expected each once")
    return _of_list(listed)


def _of_list(symbols: Symbols) -> Tokenizer:
    kind = CharacterTokenizer if " " in symbols else MixedTokenizer
    return kind(tuple(symbols), "none")


def _tokens(folder: Path, config: Config) -> list[str]:
    """Returns the list of tokens: of the file that config.yaml names, of the usual files, or in config.yaml."""
    named = (config.get("tokenizer_conf") or {}).get("token_list") or config.get("token_list")
    if isinstance(named, list):
        return [str(each) for each in named]
    names = (*((Path(named).name,) if isinstance(named, str) else ()), *TOKENS)
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        raise UserError(f"{folder} has no list of tokens: expected one of {', '.join(names)}")
    try:
        text = file.read_text("utf-8")
        found = json.loads(text) if file.suffix == ".json" else [line.rstrip() for line in text.splitlines()]
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}; expected a list of tokens") from error
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise UserError(f"{file} is no list of tokens: expected one text for each label")
    return found


def save_folder(weights: NamedWeights, model: Model, tokenizer: Tokenizer, out: Path) -> None:
    """Writes a folder that FunASR's AutoModel reads.

    Args:
        weights: Weights under FunASR's names.

    Raises:
        UserError: If FunASR does not have the model, its front-end or its labels.
    """
    config = _config(model, tokenizer)
    statistics = _statistics(model.front_end)
    _check_is_whole(config, model, out)
    _check_labels(tokenizer)
    out.mkdir(parents=True)
    if statistics:
        write_whole(out / STATISTICS, kaldi_text(statistics))
    write_whole(out / CONFIG, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    if isinstance(tokenizer, SentencePieceTokenizer):
        labels = {"bpemodel": PIECES}
        write_whole(out / PIECES, tokenizer.model)
    else:
        labels = {"token_list": TOKENS[0]}
        write_whole(out / TOKENS[0], json.dumps(_named(tokenizer.symbols), ensure_ascii=False, indent=1))
    files = {
        "init_param": WEIGHTS, "config": CONFIG, "tokenizer_conf": labels,
        "frontend_conf": {"cmvn_file": STATISTICS} if statistics else {},
    }  # fmt: skip
    hub = {"framework": "pytorch", "task": "auto-speech-recognition", "model": {"type": "funasr"}}
    write_whole(out / HUB, json.dumps({**hub, "file_path_metas": files}, indent=2))
    save_torch(dict(weights), out / WEIGHTS)


def _named(symbols: Symbols) -> list[str]:
    return [BLANK if symbol is None else SPACE if symbol == " " else symbol for symbol in symbols]


def _check_labels(tokenizer: Tokenizer) -> None:
    """Checks that texts of the labels, read again, have the same spaces.

    Raises:
        UserError: If a label would be written with other spaces.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        return
    ours, theirs = Spelling.of(tokenizer), Spelling.of(_of_list(tokenizer.symbols))
    always = (True,) * tokenizer.vocab_size
    for label, symbol in enumerate(tokenizer.symbols):
        is_same = (ours.texts[label], ours.opens[label]) == (theirs.texts[label], theirs.opens[label])
        if any(ours.opens):
            is_same &= (ours.ends or always)[label] == (theirs.ends or always)[label]
        if not is_same and symbol not in (None, *UNWRITTEN):
            raise UserError(
                f"FunASR has no {tokenizer.kind} such as {symbol!r}, label {label}, with these spaces: expected "
                "characters with a label for the space, words of letters alone, Chinese characters, or a SentencePiece "
                "model"
            )


def _config(model: Model, tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the content of config.yaml.

    Raises:
        UserError: If FunASR does not have the model.
    """
    check_heads(model.heads)
    head = next((each for each in model.heads.values() if isinstance(each, Paraformer | ParaformerV2)), None)
    if not isinstance(model.encoder, SANM) or head is None or not isinstance(head.decoder, SANMDecoder):
        raise UserError("FunASR has no such model: expected a SANM encoder and a Paraformer head with a SANMDecoder")
    if not isinstance(model.front_end, KaldiFbank):
        raise UserError(f"FunASR has no {type(model.front_end).__name__}: expected the front-end KaldiFbank")
    if tokenizer.symbols[0] is not None:
        raise UserError(
            f"label 0 is {tokenizer.symbols[0]!r}: expected the blank, as in FunASR (training with a vocabulary and "
            "--data.tokenizer.blank-id 0)"
        )
    ctc = next((each for each in model.heads.values() if isinstance(each, CTC)), None)
    encoder, decoder = model.encoder, head.decoder
    labels: dict[str, Any] = {
        "tokenizer": "CharTokenizer",
        "tokenizer_conf": {
            "unk_symbol": UNKNOWN if UNKNOWN in tokenizer.symbols else BLANK,
            "split_with_space": tokenizer.kind == "words",
        },
    }
    if isinstance(tokenizer, SentencePieceTokenizer):
        labels = {"tokenizer": PIECES_CLASS, "tokenizer_conf": {"bpemodel": PIECES}}
    config: dict[str, Any] = {
        "model": "Paraformer" if isinstance(head, Paraformer) else "Paraformer_v2_community",
        "model_conf": _model_conf(head, ctc),
        "encoder": "SANMEncoder",
        "encoder_conf": {
            "output_size": encoder.dim, "attention_heads": encoder.num_heads, "linear_units": encoder.hidden_dim,
            "num_blocks": encoder.num_layers, "dropout_rate": encoder.dropout, "positional_dropout_rate": 0.0,
            "attention_dropout_rate": encoder.attention_dropout, "input_layer": "pe",
            "pos_enc_class": "SinusoidalPositionEncoder", "normalize_before": encoder.norm_first,
            "kernel_size": encoder.kernel_size, "sanm_shfit": encoder.memory_shift, "selfattention_layer_type": "sanm",
        },
        "decoder": "ParaformerSANMDecoder" + "_v2_community" * isinstance(head, ParaformerV2),
        "decoder_conf": {
            "attention_heads": decoder.num_heads, "linear_units": decoder.feedforward_dim,
            "num_blocks": decoder.num_layers, "dropout_rate": decoder.dropout,
            "positional_dropout_rate": decoder.dropout, "self_attention_dropout_rate": decoder.memory_dropout,
            "src_attention_dropout_rate": decoder.attention_dropout, "att_layer_num": decoder.num_attention_layers,
            "kernel_size": decoder.kernel_size, "sanm_shfit": decoder.memory_shift,
            **({"input_layer": "linear"} if isinstance(head, ParaformerV2) else {}),
        },
        "frontend": "WavFrontend",
        "frontend_conf": _front_end_conf(model.front_end),
        **labels,
    }  # fmt: skip
    if isinstance(head, Paraformer):
        given = head.predictor
        config["predictor"] = next(name for name, kind in PREDICTORS.items() if kind == given.kind)
        config["predictor_conf"] = {
            "idim": encoder.dim, "threshold": 1.0, "l_order": given.before, "r_order": given.after,
            "tail_threshold": given.tail, "smooth_factor": given.smooth_factor,
            "noise_threshold": given.noise_threshold, "dropout": given.dropout,
        }  # fmt: skip
    if ctc:
        config["ctc_conf"] = {"dropout_rate": ctc.dropout, "ctc_type": "builtin", "reduce": True}
    return config


def _model_conf(head: Paraformer | ParaformerV2, ctc: CTC | None) -> dict[str, Any]:
    """Returns the settings of losses and labels. The weights of losses are those whose sum is 1, as in FunASR."""
    other = head.label_scale if isinstance(head, Paraformer) else head.scale
    weight = ctc.scale / (ctc.scale + other) if ctc and ctc.scale + other else 0.0
    shared = {
        "ctc_weight": round(weight, 6), "lsm_weight": head.smoothing, "blank_id": 0,
        "length_normalized_loss": head.weight_by == "labels",
    }  # fmt: skip
    dropped = [each for each in head.dropped_ids if each]
    begin, end = (*dropped, *dropped, 0, 0)[:2]
    if isinstance(head, Paraformer) and head.ends:
        end = max(head.end_id, 0)
        begin = next((each for each in dropped if each != end), end)
    shared |= {"sos": begin, "eos": end}
    if isinstance(head, ParaformerV2):
        return shared
    return {
        **shared, "predictor_weight": head.quantity_scale, "predictor_bias": int(head.ends),
        "sampling_ratio": head.sampling, "share_embedding": head.shares_embedding,
    }  # fmt: skip


def _front_end_conf(front_end: KaldiFbank) -> dict[str, Any]:
    stack = next((each for each in front_end.then if isinstance(each, Stack)), Stack(1, 1))
    return {
        "fs": front_end.rate_hz, "window": front_end.window, "n_mels": front_end.num_mels,
        "frame_length": front_end.window_ms, "frame_shift": front_end.hop_ms, "lfr_m": stack.num, "lfr_n": stack.every,
        "snip_edges": front_end.snip_edges, "upsacle_samples": front_end.scale == 32768.0, "dither": 0.0,
    }  # fmt: skip


def _statistics(front_end: FrontEnd) -> NormaliseByDataSet | None:
    return next((each for each in front_end.then if isinstance(each, NormaliseByDataSet)), None)


def _check_is_whole(config: Config, model: Model, out: Path) -> None:
    """Checks that the settings, read again, recognise as the model does.

    Raises:
        UserError: If a setting is lost.
    """
    encoder, heads = settings_of(config, str(out / CONFIG))
    front_end = front_end_of(config, out, str(out / CONFIG))
    without = [
        replace(each, then=tuple(stage for stage in each.then if not isinstance(stage, NormaliseByDataSet)))
        for each in (front_end, model.front_end)
        if isinstance(each, KaldiFbank)
    ]
    if without[0] != replace(without[1], dither=without[0].dither):
        raise UserError(f"FunASR has no front-end {model.front_end}: expected one of audio.presets.funasr")
    if encoder != replace(model.encoder, taps=(), remat=encoder.remat):  # type: ignore[call-arg]
        raise UserError(f"FunASR has no encoder {model.encoder}: expected a SANM encoder of its settings")
    head = next(each for each in model.heads.values() if isinstance(each, Paraformer | ParaformerV2))
    if lost := [name for name in _of_inference(head) if getattr(heads[HEAD], name) != getattr(head, name)]:
        raise UserError(f"FunASR has no heads with {lost[0]} {getattr(head, lost[0])}")
    if (dropped := _dropped(head)) != _dropped(heads[HEAD]):
        raise UserError(
            f"texts leave out the labels {sorted(dropped)}: expected those of the blank, one begin and one end at "
            "most, as in FunASR"
        )


def _dropped(head: HeadSettings) -> set[int]:
    """Returns the ids of the labels that are left out of texts; that of the blank is 0."""
    if isinstance(head, Paraformer) and head.ends:
        return {0, max(head.end_id, 0), *head.dropped_ids}
    return {0, *(head.dropped_ids if isinstance(head, Paraformer | ParaformerV2) else ())}


def _of_inference(head: HeadSettings) -> list[str]:
    """Returns the names of the fields that recognition depends on."""
    names = ("predictor", "ends", "queries", "enhanced", "tap")
    return [field.name for field in fields(head) if field.name in names]


def kaldi_text(statistics: NormaliseByDataSet) -> str:
    """Returns the text of an am.mvn, which `NormaliseByDataSet.of_kaldi` reads."""
    size = len(statistics.mean)
    shift = " ".join(repr(-value) for value in statistics.mean)
    scale = " ".join(repr(1 / value) for value in statistics.deviation)
    return (
        f"<Nnet>\n<Splice> {size} {size}\n[ 0 ]\n<AddShift> {size} {size}\n<LearnRateCoef> 0 [ {shift} ]\n"
        f"<Rescale> {size} {size}\n<LearnRateCoef> 0 [ {scale} ]\n</Nnet>\n"
    )


def _settings(path: Path) -> tuple[SANM, dict[str, HeadSettings]]:
    return settings_of(config_of(path), str(path / CONFIG))


FORMATS = (
    Format(
        "funasr", "FunASR (Paraformer)", SANM, lambda weights: any("encoders0.0" in name for name in weights), find,
        export, save_folder=save_folder, heads=lambda model: {"heads": model.heads},
    ),
)  # fmt: skip
DESCRIPTIONS = (
    Description(
        "FunASR's folders", is_folder, lambda path, **changes: replace(_settings(path)[0], **changes),
        lambda path: front_end_of(config_of(path), path, str(path / CONFIG)), lambda path: _settings(path)[1],
        tokenizer_of, others=UNUSED,
    ),
)  # fmt: skip
