"""Folders of FunASR's model hub: config.yaml, model.pt, am.mvn and the list of tokens, read and written."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.stages import NormaliseByDataSet, Stack
from asr_jax.core.errors import UserError
from asr_jax.core.text_files import TextError, json_text, read_lines, read_text
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer import Paraformer
from asr_jax.heads.paraformer_v2 import ParaformerV2
from asr_jax.models.base import Model
from asr_jax.models.sanm import SANM
from asr_jax.nn.decoders.parallel_decoder import SANMDecoder
from asr_jax.pretrained.base import Description, Format, Symbols
from asr_jax.pretrained.funasr import (
    DECODER_FIELDS,
    DECODERS,
    ENCODER_FIELDS,
    FRONT_END_FIELDS,
    HEAD,
    MODELS,
    PREDICTOR_FIELDS,
    PREDICTORS,
    UNUSED,
    Config,
    check_heads,
    front_end_of,
    rows,
    settings_of,
)
from asr_jax.pretrained.funasr_files import CONFIG, HUB, STATISTICS, WEIGHTS, is_folder
from asr_jax.text.base import Tokenizer
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.mixed import UNWRITTEN, MixedTokenizer
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.spelling import Spelling

TOKENS = ("tokens.json", "tokens.txt", "units.txt")
PIECES, PIECES_CLASS = "bpe.model", "SentencepiecesTokenizer"
SPACE, BLANK, UNKNOWN = "<space>", "<blank>", "<unk>"
OF_INFERENCE = ("predictor", "ends", "queries", "enhanced", "tap")
"""Fields of heads that recognition depends on."""


def config_of(folder: Path) -> Config:
    """Returns the content of config.yaml.

    Raises:
        UserError: If it cannot be read.
    """
    try:
        config = yaml.safe_load(read_text(folder / CONFIG))
    except (OSError, TextError, yaml.YAMLError) as error:
        raise UserError(f"{folder / CONFIG} cannot be read: {error}") from error
    if not isinstance(config, Mapping):
        raise UserError(f"{folder / CONFIG} is {config!r}: expected the settings of a model")
    return config


def tokenizer_of(folder: Path, given: Tokenizer | None) -> Tokenizer:
    """Returns a given tokenizer, or that of the folder; label 0 is the blank.

    A list of tokens without a label for the space has words and pieces of words, which texts have spaces between.

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
        is_json = file.suffix == ".json"
        found = json.loads(read_text(file)) if is_json else [line.rstrip() for line in read_lines(file)]
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}; expected a list of tokens") from error
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise UserError(f"{file} is no list of tokens: expected one text for each label")
    return found


def folder_files(model: Model, tokenizer: Tokenizer) -> dict[str, str | bytes]:
    """Returns the files of a folder that FunASR's AutoModel reads, without the weights.

    Raises:
        UserError: If FunASR does not have the model, its front-end or its labels.
    """
    config = _config(model, tokenizer)
    _check_is_whole(config, model)
    _check_labels(tokenizer)
    if isinstance(tokenizer, SentencePieceTokenizer):
        labels, named = {PIECES: tokenizer.model}, {"bpemodel": PIECES}
    else:
        text = json_text(_named(tokenizer.symbols), indent=1)
        labels, named = {TOKENS[0]: text.encode()}, {"token_list": TOKENS[0]}
    statistics = next((each for each in model.front_end.then if isinstance(each, NormaliseByDataSet)), None)
    files = {
        "init_param": WEIGHTS,
        "config": CONFIG,
        "tokenizer_conf": named,
        "frontend_conf": {"cmvn_file": STATISTICS} if statistics else {},
    }
    hub = {"framework": "pytorch", "task": "auto-speech-recognition", "model": {"type": "funasr"}}
    return {
        CONFIG: yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
        HUB: json.dumps({**hub, "file_path_metas": files}, indent=2),
        **({STATISTICS: kaldi_text(statistics)} if statistics else {}),
        **labels,
    }


def _named(symbols: Symbols) -> list[str]:
    return [BLANK if symbol is None else SPACE if symbol == " " else symbol for symbol in symbols]


def _check_labels(tokenizer: Tokenizer) -> None:
    """Checks that texts of the labels, read again, have the same spaces."""
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
    """Returns the content of config.yaml."""
    check_heads(model)
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
    is_first = isinstance(head, Paraformer)
    labels: dict[str, Any] = {
        "tokenizer": "CharTokenizer",
        "tokenizer_conf": {
            "unk_symbol": UNKNOWN if UNKNOWN in tokenizer.symbols else BLANK,
            "split_with_space": tokenizer.kind == "words",
        },
    }
    if isinstance(tokenizer, SentencePieceTokenizer):
        labels = {"tokenizer": PIECES_CLASS, "tokenizer_conf": {"bpemodel": PIECES}}
    encoder = replace(model.encoder, feedforward_dim=model.encoder.hidden_dim)
    config: dict[str, Any] = {
        "model": MODELS[0] if is_first else MODELS[-1],
        "model_conf": _model_conf(head, ctc),
        "encoder": "SANMEncoder",
        "encoder_conf": {
            **_named_fields(encoder, ENCODER_FIELDS),
            "positional_dropout_rate": 0.0,
            "input_layer": "pe",
            "pos_enc_class": "SinusoidalPositionEncoder",
            "selfattention_layer_type": "sanm",
        },
        "decoder": DECODERS[is_first],
        "decoder_conf": {
            **_named_fields(head.decoder, DECODER_FIELDS),
            "positional_dropout_rate": head.decoder.dropout,
            **({} if is_first else {"input_layer": "linear"}),
        },
        "frontend": "WavFrontend",
        "frontend_conf": _front_end_conf(model.front_end),
        **labels,
    }
    if isinstance(head, Paraformer):
        config["predictor"] = next(name for name, kind in PREDICTORS.items() if kind == head.predictor.kind)
        config["predictor_conf"] = {
            **_named_fields(head.predictor, PREDICTOR_FIELDS),
            "idim": model.encoder.dim,
            "threshold": 1.0,
        }
    if ctc:
        config["ctc_conf"] = {"dropout_rate": ctc.dropout, "ctc_type": "builtin", "reduce": True}
    return config


def _named_fields(settings: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of settings by FunASR's names."""
    return {theirs: getattr(settings, ours) for ours, theirs in names.items()}


def _model_conf(head: Paraformer | ParaformerV2, ctc: CTC | None) -> dict[str, Any]:
    """Returns the settings of losses and labels. The weights of the losses add up to 1, as in FunASR."""
    other = head.label_scale if isinstance(head, Paraformer) else head.scale
    weight = ctc.scale / (ctc.scale + other) if ctc and ctc.scale + other else 0.0
    shared = {
        "ctc_weight": round(weight, 6),
        "lsm_weight": head.smoothing,
        "blank_id": 0,
        "length_normalized_loss": head.weight_by == "labels",
    }
    dropped = [each for each in head.dropped_ids if each]
    begin, end = (*dropped, *dropped, 0, 0)[:2]
    if isinstance(head, Paraformer) and head.ends:
        end = max(head.end_id, 0)
        begin = next((each for each in dropped if each != end), end)
    shared |= {"sos": begin, "eos": end}
    if isinstance(head, ParaformerV2):
        return shared
    return {
        **shared,
        "predictor_weight": head.quantity_scale,
        "predictor_bias": int(head.ends),
        "sampling_ratio": head.sampling,
        "share_embedding": head.shares_embedding,
    }


def _front_end_conf(front_end: KaldiFbank) -> dict[str, Any]:
    stack = next((each for each in front_end.then if isinstance(each, Stack)), Stack(1, 1))
    return {
        **_named_fields(front_end, FRONT_END_FIELDS),
        "frame_length": front_end.window_ms,
        "frame_shift": front_end.hop_ms,
        "lfr_m": stack.num,
        "lfr_n": stack.every,
        "upsacle_samples": front_end.scale == 32768.0,
        "dither": 0.0,
    }


def _check_is_whole(config: Config, model: Model) -> None:
    """Checks that the settings, read again, recognise as the model does."""
    encoder, heads = settings_of(config, CONFIG)
    front_end = front_end_of(config, None, CONFIG)
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
    named = [field.name for field in fields(head) if field.name in OF_INFERENCE]
    if lost := [name for name in named if getattr(heads[HEAD], name) != getattr(head, name)]:
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


FUNASR = Format(
    names="funasr",
    of="FunASR (Paraformer)",
    encoder=SANM,
    mark=r"encoders0\.0",
    rows=rows,
    check=check_heads,
    folder=folder_files,
    folder_weights=WEIGHTS,
)
FORMATS = (FUNASR,)
DESCRIPTIONS = (
    Description(
        "FunASR's folders",
        is_folder,
        lambda path: _settings(path)[0],
        lambda path: front_end_of(config_of(path), path, str(path / CONFIG)),
        lambda path: _settings(path)[1],
        tokenizer_of,
        others=UNUSED,
    ),
)
