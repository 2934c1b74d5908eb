"""Accuracy of forced alignment and segmentation on joined recordings with known boundaries.

    python benchmarks/alignment_borders.py RUN --data MANIFEST [--max-seconds 6] [--json OUT]

Recordings are joined in random order. The silence at the ends of each recording (below its loudest part by more than
--trim-db) is removed. The pause after a recording is noise with the level of its quietest tenth, but not louder than 40
dB below its loudest part.

    words    aligns some recordings at a time with their text. Errors are distances from the midpoint between the last
             word of a recording and the first word of the next one to the nearest point and to the middle of the pause.
    segment  cuts all recordings like asr_jax.align --segment. Errors are distances from each end of a piece to the
             nearest point of the pause. A piece is right if it contains the audio of its text and no other words, and
             ends in pauses (within 0.1 s).
    --foreign, --unsaid  number of consecutive recordings that are missing in the text; number of words of the text that
             are not in the audio
    --wrong  share of the words that are replaced by other words of the text
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asr_jax.alignment.cutting import Cutting
from asr_jax.audio.io import write_flac
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.measuring import sounding_part
from asr_jax.data.manifests.reading import Utterances, read_utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference import aligning as alignment
from asr_jax.inference.segmenting import Segmenter
from asr_jax.inference.trained import load_trained

RATE_HZ = 16000


class Joint(NamedTuple):
    """A recording in the joined audio, in seconds."""

    start_s: float
    end_s: float
    pause_s: float
    """Length of the pause after the recording in seconds."""
    text: str


def joined(
    utterances: list[Utterance], rng: np.random.Generator, pause: tuple[float, float], *, trim_db: float
) -> tuple[np.ndarray, list[Joint]]:
    parts: list[np.ndarray] = []
    joints, at = [], 0
    for utterance in utterances:
        whole = Location.parse(utterance.location).audio(rate_hz=RATE_HZ)
        rms = [np.sqrt(np.mean(part.astype(float) ** 2)) for part in np.array_split(whole, max(len(whole) // 400, 1))]
        samples = whole[slice(*sounding_part(whole, trim_db))]
        level = min(np.quantile(rms, 0.1), 0.01 * max(rms))  # at most 40 dB below the loudest part
        noise = rng.normal(0, max(level, 1), int(rng.uniform(*pause) * RATE_HZ))
        parts += [samples, np.rint(noise).astype(np.int16)]
        end = at + len(samples)
        joints.append(Joint(at / RATE_HZ, end / RATE_HZ, len(noise) / RATE_HZ, utterance.text))
        at = end + len(noise)
    return np.concatenate(parts), joints


def quantiles(errors_s: list[float]) -> dict[str, float]:
    errors_ms = 1000 * np.array(errors_s)
    return {"number": len(errors_ms), "median_ms": round(float(np.median(errors_ms)), 1),
            "p90_ms": round(float(np.quantile(errors_ms, 0.9)), 1)}  # fmt: skip


def outside_s(place_s: float, joint: Joint) -> float:
    """Distance in seconds of a time from the pause after a recording; 0 within the pause."""
    return max(joint.end_s - place_s, place_s - joint.end_s - joint.pause_s, 0.0)


def words(
    trained: Any, utterances: list[Utterance], rng: np.random.Generator, options: Any, folder: Path
) -> dict[str, Any]:
    made, by_id = [], {}
    for number in range(0, len(utterances), options.together):
        samples, joints = joined(
            utterances[number : number + options.together], rng, options.pause, trim_db=options.trim_db
        )
        path = folder / f"{number}.flac"
        write_flac(path, samples, RATE_HZ)
        text = " ".join(joint.text for joint in joints)
        made.append(Utterance(str(number), str(path), text, len(samples) / RATE_HZ))
        by_id[str(number)] = joints
    outside, middle, named = [], [], 0
    for found in alignment.aligned_utterances(trained, alignment.plan(trained, Utterances.of(made))):
        if found.transcript is None:
            named += 1
            continue
        joints, place = by_id[found.utterance.id], 0
        for joint in joints[:-1]:
            place += len(joint.text.split())
            before, after = found.transcript.words[place - 1 : place + 1]
            border_s = (before.end_s + after.start_s) / 2
            outside.append(outside_s(border_s, joint))
            middle.append(abs(border_s - joint.end_s - joint.pause_s / 2))
    return {"to_pause": quantiles(outside), "to_middle": quantiles(middle), "not_aligned": named}


class TextWord(NamedTuple):
    """A word of the text that is segmented."""

    text: str
    recording: int
    """Index of its recording; -1 if the word is not in the audio."""
    is_wrong: bool = False
    """Whether the audio contains another word instead."""


def given_text(joints: list[Joint], rng: np.random.Generator, options: Any) -> list[TextWord]:
    """Text of the recordings, with the deviations of --foreign, --unsaid and --wrong."""
    third, vocabulary = len(joints) // 3, [word for joint in joints for word in joint.text.split()]
    foreign, text = range(third, third + options.foreign), list[TextWord]()
    for number, joint in enumerate(joints):
        if number == 2 * third:
            text += [TextWord(str(word), -1) for word in rng.choice(vocabulary, options.unsaid)]
        for word in joint.text.split() if number not in foreign else ():
            other = str(rng.choice(vocabulary)) if rng.random() < options.wrong else word
            text.append(TextWord(other, number, other != word))
    return text


def segment(
    trained: Any, utterances: list[Utterance], rng: np.random.Generator, options: Any, folder: Path
) -> dict[str, Any]:
    samples, joints = joined(utterances, rng, options.pause, trim_db=options.trim_db)
    write_flac(folder / "all.flac", samples, RATE_HZ)
    text = given_text(joints, rng, options)
    whole = Utterance("all", str(folder / "all.flac"), " ".join(word.text for word in text), len(samples) / RATE_HZ)
    segmenter = Segmenter(trained, cutting=Cutting(max_s=options.max_seconds, min_score=options.min_score))
    begin = time.perf_counter()
    ((_, pieces, _),) = segmenter([whole])
    took_s, errors, at = time.perf_counter() - begin, list[float](), 0
    counts, reasons, sure_s = {"sure": 0, "right": 0, "with_wrong_text": 0}, Counter[str](), 0.0
    for utterance, _, reason in pieces:
        words = text[at : at + len(utterance.text.split())]
        at += len(words)
        if reason:
            reasons[reason.partition(" below")[0].rstrip("-.0123456789 ")] += 1
            continue
        is_wrong = any(word.is_wrong or word.recording < 0 for word in words)
        start_s = Location.parse(utterance.location).start_s
        ends = [] if is_wrong else errors_of_ends(text, at, len(words), start_s, start_s + utterance.duration_s, joints)
        errors, sure_s = errors + ends, sure_s + utterance.duration_s
        counts["sure"] += 1
        counts["right"] += not is_wrong and max(ends) <= 0.1
        counts["with_wrong_text"] += is_wrong
    assert at == len(text), f"{at} of {len(text)} words are in pieces"
    wrong = sum(word.is_wrong or word.recording < 0 for word in text)
    return {"audio_h": round(whole.duration_s / 3600, 3), "sure_h": round(sure_s / 3600, 3), "words": len(text),
            "wrong_words": wrong, "seconds": round(took_s, 1), "ends": quantiles(errors), **counts,
            "left_out": dict(reasons)}  # fmt: skip


def errors_of_ends(
    text: list[TextWord], at: int, num: int, start_s: float, end_s: float, joints: list[Joint]
) -> list[float]:
    """Errors of both ends of a piece in seconds; its text is the `num` words before index `at`.

    An error is the distance from the pause at that end of the text or, if the piece is cut within a recording, from
    that recording.
    """
    of = [word.recording for word in text]
    first, last = joints[of[at - num]], joints[of[at - 1]]
    is_first = at == num or of[at - num - 1] != of[at - num]
    is_last = at == len(of) or of[at] != of[at - 1]
    before = joints[of[at - num] - 1] if of[at - num] else Joint(0, 0, first.start_s, "")
    return [
        outside_s(start_s, before) if is_first else max(first.start_s - start_s, start_s - first.end_s, 0.0),
        outside_s(end_s, last) if is_last else max(last.start_s - end_s, end_s - last.end_s, 0.0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--source", default="", help="use only recordings of this source")
    parser.add_argument("--pause", nargs=2, type=float, default=(0.2, 0.8), metavar="SECONDS")
    parser.add_argument("--together", type=int, default=4, help="number of recordings that are aligned together (4)")
    parser.add_argument("--trim-db", type=float, default=35.0)
    parser.add_argument("--max-seconds", type=float, default=20.0)
    parser.add_argument("--min-score", type=float, default=-0.3)
    parser.add_argument("--foreign", type=int, default=0)
    parser.add_argument("--unsaid", type=int, default=0)
    parser.add_argument("--wrong", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rng, trained = np.random.default_rng(0), load_trained(options.run)
    read = [
        utterance
        for utterance in read_utterances(options.data, role="validation")
        if options.source in utterance.source
    ]
    utterances = [read[i] for i in rng.permutation(len(read))]
    with tempfile.TemporaryDirectory() as name:
        figures = {
            "words": words(trained, utterances, rng, options, Path(name)),
            "segment": segment(trained, utterances, rng, options, Path(name)),
        }
    print(json.dumps(figures, indent=1))
    if options.json:
        options.json.write_text(
            json.dumps({"settings": {k: str(v) for k, v in vars(options).items()}} | figures, indent=1)
        )


if __name__ == "__main__":
    main()
