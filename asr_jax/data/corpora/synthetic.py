"""The embedded corpus: synthesised speech with exact transcripts, made on this machine in half a minute.

    python -m asr_jax.data.corpora.synthetic --out data/synthetic

makes `audio/SPLIT/*.flac` (16 kHz), `manifests/SPLIT.jsonl` and `corpus.json` (settings, counts, seconds taken; written
last); the splits are train, validation and test. eSpeak NG speaks the sentences of a small grammar in many voices,
accents, rates, pitches and levels, without noise. It shows that training works from end to end; it is not human speech,
and an error rate on it says nothing about people.

No voice of the test, nor a near twin of one, is in train or validation (`VOICES` in sentences.py), and no
sentence of one split is in another: of the test, training hears only the words. The same settings give the same bytes,
for any number of processes, with the same package versions on the same kind of processor.
"""

import hashlib
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from asr_jax.audio.io import probe, write_flac
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.options import parse
from asr_jax.data.corpora import espeak
from asr_jax.data.corpora.sentences import RATE_HZ, SHARES, Corpus, Sentence, plan, waveform
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.utterances import Utterance

VERSION = 1
"""Raised with every change that changes a byte of the corpus."""

NUM_PER_PROCESS = 240
"""How many utterances one process speaks. eSpeak's state makes it a part of the corpus, like the seed."""
_UNFINISHED = "corpus.unfinished"


def make_corpus(folder: str | os.PathLike[str], settings: Corpus, *, processes: int | None = None) -> dict[str, Any]:
    """Speaks the corpus into `folder`, unless it is there, and returns the content of its `corpus.json`.

    Args:
        folder: new, empty, or one that this function began or finished.
        processes: that speak at the same time, by default one for each core.

    Raises:
        UserError: no eSpeak NG; the folder holds a corpus of other settings, or other things.
        RunError: a process that speaks failed.
    """
    folder, started = Path(folder).absolute(), time.perf_counter()
    if (folder / "corpus.json").exists():
        return _found(folder, settings)
    espeak.loader()
    utterances = plan(settings)
    _clear(folder)
    for split in SHARES:
        (folder / "audio" / split).mkdir(parents=True)
    _speak_all(utterances, folder, processes=processes or os.cpu_count() or 1)
    corpus = {
        "made_by": "asr_jax.data.corpora.synthetic",
        "version": VERSION,
        "settings": asdict(settings),
        "sets": {split: _write_set(split, utterances, folder) for split in SHARES},
        "audio_sha256": _digest(utterances, folder),
        "packages": {name: version(name) for name in ("espeakng-loader", "soundfile", "soxr")},
        "seconds_taken": round(time.perf_counter() - started, 1),
    }
    mark = folder / _UNFINISHED
    mark.write_text(json.dumps(corpus, indent=2) + "\n")
    mark.replace(folder / "corpus.json")
    return corpus


def _found(folder: Path, settings: Corpus) -> dict[str, Any]:
    """The finished corpus in the folder, if it is the one that is asked for."""
    corpus = json.loads((folder / "corpus.json").read_text())
    # A setting that it does not have is newer than it, and has the value that it was made with unless told otherwise.
    there = {"version": corpus.get("version"), **json.loads(json.dumps(asdict(Corpus()))), **corpus.get("settings", {})}
    asked = {"version": VERSION, **json.loads(json.dumps(asdict(settings)))}  # tuples as JSON has them
    differing = [f"{key} {there.get(key)} (asked for: {asked[key]})" for key in asked if there.get(key) != asked[key]]
    if differing:
        raise UserError(
            f"{folder} holds another corpus: {', '.join(differing)}; give another folder or delete this one"
        )
    print(f"corpus: {folder} is already there")
    return corpus


def _clear(folder: Path) -> None:
    """Leaves nothing in the folder but the mark of a corpus that is being made."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / _UNFINISHED
    if any(folder.iterdir()) and not mark.exists():
        raise UserError(f"{folder} holds other things than a corpus made here; give a new or an empty folder")
    mark.touch()
    for name in ("audio", "manifests"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _speak_all(sentences: Sequence[Sentence], folder: Path, *, processes: int) -> None:
    parts = [sentences[start : start + NUM_PER_PROCESS] for start in range(0, len(sentences), NUM_PER_PROCESS)]
    with ThreadPoolExecutor(processes) as pool:
        for done, _ in enumerate(pool.map(partial(_in_new_process, folder), parts), start=1):
            print(f"corpus: {done} of {len(parts)} parts spoken", flush=True)


def _in_new_process(folder: Path, part: Sequence[Sentence]) -> None:
    # Not one of a pool, which has spoken before and would speak differently; and not multiprocessing's, which runs the
    # caller's script again.
    code = "from asr_jax.data.corpora.synthetic import speak_part; speak_part()"
    given, root = pickle.dumps((part, folder)), Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], input=given, cwd=root, capture_output=True, check=False)
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip()
        raise RunError(f"a process that speaks the corpus ended with code {done.returncode}: {message}")


def speak_part() -> None:
    """Speaks the sentences that come, pickled with their folder, on the standard input of a new process."""
    part, folder = pickle.load(sys.stdin.buffer)
    try:
        engine = espeak.Espeak()
        for sentence in part:
            write_flac(_path(sentence, folder), waveform(engine, sentence), RATE_HZ)
    except UserError as error:
        sys.exit(str(error))


def _write_set(split: str, sentences: Sequence[Sentence], folder: Path) -> dict[str, Any]:
    """Writes the manifest of one split, and returns its counts."""
    utterances = []
    for sentence in sentences:
        if sentence.split == split:
            path, speaker = _path(sentence, folder), sentence.manner.variant
            duration_s = probe(path).duration_s
            utterances.append(Utterance(sentence.id, str(path), sentence.text, duration_s, speaker, "synthetic"))
    write_manifest(folder / "manifests" / f"{split}.jsonl", utterances)
    words = [word for utterance in utterances for word in utterance.text.split()]
    return {
        "utterances": len(utterances),
        "minutes": round(math.fsum(utterance.duration_s for utterance in utterances) / 60, 2),
        "words": len(words),
        "different_words": len(set(words)),
        "speakers": sorted({utterance.speaker for utterance in utterances}),
    }


def _path(sentence: Sentence, folder: Path) -> Path:
    return folder / "audio" / sentence.split / f"{sentence.id}.flac"


def _digest(sentences: Sequence[Sentence], folder: Path) -> str:
    """One hash of all audio files: two corpora with the same one are the same."""
    digest = hashlib.sha256()
    for sentence in sentences:
        digest.update(_path(sentence, folder).read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """Options of `asr_jax.data.corpora.synthetic`."""

    out: str
    """Folder of the corpus: new or empty."""
    minutes: float = Corpus.minutes
    """Approximate amount of speech."""
    seed: int = Corpus.seed
    """Seed of sentences and voices."""
    processes: int | None = None
    """Number of processes that synthesise. Default: one for each core."""


def main() -> None:
    """The command."""
    try:
        given = parse(
            CorpusOptions, sys.argv[1:], prog="python -m asr_jax.data.corpora.synthetic",
            about=(__doc__ or "").split("\n")[0],
        )  # fmt: skip
        corpus = make_corpus(given.out, Corpus(minutes=given.minutes, seed=given.seed), processes=given.processes)
    except (UserError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", UserError.exit_code))
    sets = corpus["sets"].values()
    num, minutes, words = (sum(numbers[key] for numbers in sets) for key in ("utterances", "minutes", "words"))
    made = f"{num:,} utterances, {minutes:.1f} minutes, {words:,} words, made in {corpus['seconds_taken']} s"
    print(f"corpus: {made}: {Path(given.out) / 'manifests'}")


if __name__ == "__main__":
    main()
