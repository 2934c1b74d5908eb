"""Recognisers as files that sherpa-onnx runs: its kinds of models, their features, metadata and tokens.

Source: k2-fsa/sherpa-onnx, sherpa-onnx/csrc (`offline-*-model.cc`, `features.h`, `symbol-table.cc`) and
sherpa-onnx/python/sherpa_onnx/offline_recognizer.py, version 2.0.1.
"""

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.audio.features import FULL_SCALE, FrontEnd, KaldiFbank, MelFrontEnd, Waveform
from asr_jax.audio.logmel import LogMel
from asr_jax.audio.stages import Normalise, NormaliseByDataSet, Stack
from asr_jax.core.batch import Frames, length_mask
from asr_jax.core.errors import UserError
from asr_jax.exporting.parts import Features, Part, Parts, symbols
from asr_jax.heads.ctc import CTCHead
from asr_jax.heads.paraformer import ParaformerHead
from asr_jax.heads.transducer import TransducerHead
from asr_jax.nn.recurrent.prediction import StatelessPrediction
from asr_jax.text.characters import IdTokenizer, WordTokenizer
from asr_jax.text.mixed import MixedTokenizer
from asr_jax.text.tokenizers import Tokenizer

ICEFALL = KaldiFbank()
"""Bins of sherpa-onnx's kinds `zipformer_ctc` and `transducer`."""
FIRE_RED = KaldiFbank(high_hz=0.0, snip_edges=True, scale=FULL_SCALE)
"""Bins of sherpa-onnx's kind `fire_red_asr_ctc`."""
FUNASR = replace(FIRE_RED, window="hamming")
"""Bins of sherpa-onnx's kind `paraformer`."""
INSTEAD = "Use --to onnx, or train a transducer with StatelessPrediction and the front-end icefall"
KALDIS = "Kaldi's bins (asr_jax.audio.presets.icefall)"
SPACE, BLANK = "▁", "<blk>"


@dataclass(frozen=True)
class Kind:
    """A model in the form of one of sherpa-onnx's kinds."""

    name: str
    """Kind, which is also the function of `sherpa_onnx.OfflineRecognizer` after `from_`."""
    parts: Sequence[Part]
    tokens: Sequence[str]
    """Symbol of each label."""
    metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Metadata of files, by the name of the part."""
    lengths: Any = np.int64
    """Type of lengths in the files."""
    remarks: Sequence[str] = ()
    streams: bool = False
    """Whether the kind is one of `sherpa_onnx.OnlineRecognizer`."""
    seconds_of_frame: float = 0.04
    """Seconds per output frame by which sherpa-onnx computes times. 0: it computes none."""


def kind_of(parts: Parts, tokenizer: Tokenizer) -> Kind:
    """Returns a recogniser in the form of one of sherpa-onnx's kinds.

    Raises:
        UserError: If no kind has the model's head or front-end.
    """
    head, front_end = parts.model.heads[parts.head], parts.model.front_end
    if isinstance(head, CTCHead):
        return _ctc(parts, tokenizer, front_end)
    if isinstance(head, TransducerHead):
        return _transducer(parts, tokenizer, front_end)
    if isinstance(head, ParaformerHead):
        return _paraformer(parts, tokenizer, front_end)
    kind = type(head).__name__.removesuffix("Head")
    raise UserError(
        f"sherpa-onnx has no kind for the head {parts.head} ({kind}): expected CTC, a transducer, Paraformer"
    )


def other_front_end(front_end: FrontEnd, what: str, expected: str) -> UserError:
    """Returns the error for a front-end that is not the one of sherpa-onnx."""
    return UserError(
        f"sherpa-onnx computes the features of {what} itself, and this run has another front-end, "
        f"{type(front_end).__name__}: expected {expected}"
    )


def _ctc(parts: Parts, tokenizer: Tokenizer, front_end: FrontEnd) -> Kind:
    tokens = symbols_of(tokenizer, range(tokenizer.vocab_size))
    if bins_of(front_end) == ICEFALL:
        [part] = parts.of(of_bins(parts, "x", "x_lens"))
        return Kind("zipformer_ctc", [part], tokens)
    if bins_of(front_end) == FIRE_RED:
        [part] = parts.of(of_bins(parts, "x", "x_lens"))
        zeros, ones = (",".join([value] * FIRE_RED.num_mels) for value in ("0", "1"))
        about = {"model_type": "fire-red-asr-2-ctc", "cmvn_mean": zeros, "cmvn_inv_stddev": ones}
        return Kind("fire_red_asr_ctc", [part], tokens, {"model": about})
    normalises = isinstance(front_end, LogMel) and front_end.normalise_samples
    if not normalises and not (front_end.then and isinstance(front_end.then[0], Normalise)):
        what = "bins" if isinstance(front_end, MelFrontEnd) else "samples"
        raise UserError(
            f"sherpa-onnx has no kind of CTC models with the front-end {type(front_end).__name__} of this run: its "
            f"bins are Kaldi's (asr_jax.audio.presets.icefall or w2v_bert), and of models of samples it sets the level "
            f"of each recording to 0 dB, but this front-end does not normalise {what} by the utterance. Use --to onnx, "
            "whose files contain the front-end, or train with the front-end icefall"
        )
    [part] = parts.of(of_level_samples(parts))
    compute, level = part.function, 20 * np.log10(level_of(parts.recording))
    blank_id = tokenizer.blank_id
    part = replace(
        part, outputs=("log_probs",), function=lambda samples: ended(*compute(samples=samples), label=blank_id)
    )
    remark = f"levels of recordings: sherpa-onnx removes them, and the file sets {level:.0f} dB, as of the one above"
    remarks = [] if isinstance(front_end, Waveform) else [remark]
    return Kind("omnilingual_asr_ctc", [part], tokens, remarks=remarks, seconds_of_frame=0.02)


def _transducer(parts: Parts, tokenizer: Tokenizer, front_end: FrontEnd) -> Kind:
    if bins_of(front_end) != ICEFALL:
        raise other_front_end(front_end, "transducers", f"{KALDIS}. {INSTEAD}")
    networks, tokens, about = stateless(parts, tokenizer)
    return Kind("transducer", [parts.encoder(of_bins(parts, "x", "x_lens")), *networks], tokens, {"decoder": about})


def stateless(parts: Parts, tokenizer: Tokenizer) -> tuple[list[Part], list[str], dict[str, Any]]:
    """Returns the networks of a transducer as sherpa-onnx calls them, its symbols, and metadata of the decoder.

    Raises:
        UserError: If the prediction network is not stateless, or the head has durations.
    """
    head = parts.model.heads[parts.head]
    assert isinstance(head, TransducerHead)
    prediction = head.settings.prediction
    if not isinstance(prediction, StatelessPrediction) or head.durations:
        has = "durations" if head.durations else f"the prediction network {type(prediction).__name__}"
        raise UserError(
            f"sherpa-onnx runs transducers of Kaldi's bins with a stateless prediction network and without durations, "
            f"and this head has {has}. {INSTEAD}"
        )
    # The blank of sherpa-onnx's transducers is label 0.
    order = np.asarray([head.blank_id, *(n for n in range(head.vocab_size) if n != head.blank_id)], np.int32)
    label_of = np.concatenate([order, [-1]]).astype(np.int32)  # the last one is that of -1
    prediction_network, joint = parts.networks()

    def of_labels(y: Any) -> Any:
        return prediction_network.function(labels=jnp.asarray(label_of)[jnp.where(y < 0, head.vocab_size, y)])

    def logits(encoder_out: Any, decoder_out: Any) -> Any:
        return joint.function(encoder_out=encoder_out, decoder_out=decoder_out)[:, order]

    labels, place = prediction_network.example["labels"], np.argsort(order)
    example = np.where(labels < 0, -1, place[np.maximum(labels, 0)]).astype(np.int32)
    inputs = {"y": prediction_network.inputs["labels"]}
    networks = [
        replace(prediction_network, function=of_labels, inputs=inputs, example={"y": example}),
        replace(joint, function=logits, outputs=("logit",)),
    ]
    about = {"vocab_size": head.vocab_size, "context_size": prediction.context}
    return networks, symbols_of(tokenizer, order), about


def _paraformer(parts: Parts, tokenizer: Tokenizer, front_end: FrontEnd) -> Kind:
    stages = front_end.then
    stack = stages[0] if stages else None
    has_statistics = all(isinstance(each, NormaliseByDataSet) for each in stages[1:2])
    if bins_of(front_end) != FUNASR or not isinstance(stack, Stack) or stack.ends != "copies" or not has_statistics:
        raise other_front_end(front_end, "Paraformer", "FunASR's (asr_jax.audio.presets.funasr). Use --to onnx")
    if not isinstance(tokenizer, MixedTokenizer) and not _are_plain_words(tokenizer):
        raise UserError(
            f"sherpa-onnx joins the labels of Paraformer as FunASR does, and this run's tokenizer is of the kind "
            f"{tokenizer.kind}: expected mixed, or words of ASCII characters. Use --to onnx"
        )
    head = parts.model.heads[parts.head]
    assert isinstance(head, ParaformerHead)
    width = front_end.num_features
    mean, deviation = np.zeros(width), np.ones(width)
    if len(stages) > 1:
        mean, deviation = np.asarray(stages[1].mean), np.asarray(stages[1].deviation)  # type: ignore[attr-defined]
    [part] = parts.of(of_bins(parts, "speech", "speech_lengths", num_stages=min(len(stages), 2)))
    names = [symbol or BLANK for symbol in tokenizer.symbols]
    names[head.end_id] = "</s>"
    _check_symbols(names)
    if dropped := {*head.dropped_ids} - {head.end_id, head.blank_id}:
        raise UserError(
            f"sherpa-onnx writes all labels of Paraformer, and dropped_ids has {sorted(dropped)}: --to onnx"
        )
    compute = part.function

    def function(speech: Any, speech_lengths: Any) -> Any:
        log_probs, lengths = compute(speech=speech, speech_lengths=speech_lengths)
        return ended(log_probs, lengths, label=head.end_id), lengths

    about = {
        "vocab_size": tokenizer.vocab_size,
        "lfr_window_size": stack.num,
        "lfr_window_shift": stack.every,
        "neg_mean": ",".join(f"{-value:.8g}" for value in mean),
        "inv_stddev": ",".join(f"{1 / value:.8g}" for value in deviation),
    }
    part = replace(part, function=function, outputs=("logits", "token_num"))
    return Kind("paraformer", [part], names, {"model": about}, lengths=np.int32, seconds_of_frame=0.0)


def ended(log_probs: Any, lengths: Any, *, label: int) -> Any:
    """Returns log-probabilities that have a label of probability 1 behind the length of each row.

    sherpa-onnx reads all frames of a recording if the model does not return their number, and all queries of
    Paraformer up to the label of the end.
    """
    certain = np.where(np.arange(log_probs.shape[-1]) == label, 0.0, -1e4).astype(np.float32)
    return jnp.where(length_mask(lengths, log_probs.shape[1])[:, :, None], log_probs, certain[None, None])


def bins_of(front_end: FrontEnd) -> FrontEnd | None:
    """Returns the front-end without what does not change its bins in evaluation; None if it is not Kaldi's."""
    if not isinstance(front_end, KaldiFbank):
        return None
    return replace(front_end, dither=0.0, then=(), padding=ICEFALL.padding)


def of_bins(parts: Parts, values: str, lengths: str, *, num_stages: int = 0) -> Features:
    """Returns mel bins and their numbers of frames as inputs; the front-end's further stages are within the part.

    Args:
        values: Name of the input [B T F].
        lengths: Name of the input [B].
        num_stages: Number of the front-end's stages that the inputs have passed.
    """
    front_end = parts.model.front_end
    before, stages = replace(front_end, then=front_end.then[:num_stages]), front_end.then[num_stages:]

    def frames(**inputs: Any) -> Frames:
        found = Frames(inputs[values], inputs[lengths])
        for stage in stages:
            found = stage(found, step=None)
        mask = length_mask(found.lengths, found.values.shape[1])[..., None]
        return found.replace(values=jnp.where(mask, found.values, front_end.padding))

    least = max(before.output_length(parts.model.fewest_inputs()), 1)
    rows, size = symbols("batch, frames", least=int(least))
    recordings, samples = parts.recordings, jnp.asarray(np.stack([parts.recording] * 2))
    made = before(samples, jnp.asarray([*map(len, recordings)], jnp.int32))
    return Features(
        frames,
        {
            values: jax.ShapeDtypeStruct((rows, size, before.num_features), jnp.float32),
            lengths: jax.ShapeDtypeStruct((rows,), jnp.int32),
        },
        {values: np.asarray(made.values), lengths: np.asarray(made.lengths)},
        recordings,
    )


def of_level_samples(parts: Parts) -> Features:
    """Returns the samples of one recording with mean 0 and variance 1 as input, `samples` [1 S].

    They are multiplied by the level of the recording of the examples.
    """
    level = level_of(parts.recording)
    centred = np.clip(np.round(parts.recording - parts.recording.mean()), -32767, 32767).astype(np.int16)
    (size,) = symbols("samples", least=parts.model.fewest_inputs())

    @jax.jit
    def front_end(samples: Any) -> Frames:
        lengths = jnp.full(1, samples.shape[1], jnp.int32)
        return parts.model.front_end(samples * (level * FULL_SCALE), lengths)

    return Features(
        front_end,
        {"samples": jax.ShapeDtypeStruct((1, size), jnp.float32)},
        {"samples": (centred / (level * FULL_SCALE)).astype(np.float32)[None]},
        [centred],
    )


def level_of(recording: np.ndarray) -> float:
    """Returns what sherpa-onnx divides the samples of a recording by, after it has removed their mean."""
    return float(np.sqrt(np.var(recording / FULL_SCALE) + 1e-5))


def symbols_of(tokenizer: Tokenizer, order: Sequence[int] | np.ndarray) -> list[str]:
    """Returns the symbols of labels in sherpa-onnx's tokens.txt.

    Raises:
        UserError: If the tokenizer's texts cannot be written as joined symbols.
    """
    if isinstance(tokenizer, MixedTokenizer) and any(tokenizer.opens):
        raise UserError(
            "sherpa-onnx joins the labels of CTC and of transducers without spaces, and this run's tokenizer is of the "
            "kind mixed, with words: expected another kind, or a Paraformer head. Use --to onnx"
        )
    written = [_symbol(tokenizer, int(label)) for label in order]
    _check_symbols(written)
    return written


def _symbol(tokenizer: Tokenizer, label: int) -> str:
    symbol = tokenizer.symbols[label]
    if symbol is None:
        return BLANK
    if label == tokenizer.unknown_id:  # as decoding writes it
        text = tokenizer.decode([label])
        return SPACE * text.startswith(" ") + text.strip() if text.strip() else "<unk>"
    return SPACE + symbol if isinstance(tokenizer, WordTokenizer | IdTokenizer) else symbol.replace(" ", SPACE)


def _check_symbols(symbols: Sequence[str]) -> None:
    """Checks that sherpa-onnx reads symbols as they are meant.

    Raises:
        UserError: If not.
    """
    counts = collections.Counter(symbols)
    if wrong := [each for each in symbols if each.split() != [each] or SPACE in each[1:] or counts[each] > 1]:
        raise UserError(
            f"the symbol {wrong[0]!r} is empty, occurs twice, or has a space or {SPACE} behind its first character: "
            "sherpa-onnx's tokens.txt cannot have it. Use --to onnx"
        )


def _are_plain_words(tokenizer: Tokenizer) -> bool:
    """Whether labels are words that sherpa-onnx separates by spaces in texts of Paraformer."""
    words = [symbol for symbol in tokenizer.symbols if symbol]
    return isinstance(tokenizer, WordTokenizer) and all(word.isascii() and word[-2:] != "@@" for word in words)


def tokens_file(tokens: Sequence[str]) -> str:
    """Returns the content of tokens.txt.

    sherpa-onnx takes a vocabulary for one of bytes if its largest byte, without the sign of a space that symbols begin
    with, is 0xC6, the first byte of letters such as ư. One more symbol, which no label has, prevents that.
    """
    lines = [f"{symbol} {label}" for label, symbol in enumerate(tokens)]
    if max("".join(token.removeprefix(SPACE) for token in tokens).encode()) == 0xC6:
        lines.append(f"\N{IDEOGRAPHIC NUMBER ZERO} {len(tokens)}")
    return "\n".join(lines) + "\n"
