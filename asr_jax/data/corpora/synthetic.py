"""Embedded corpus: synthesised speech with exact transcripts, made on this machine in half a minute.

    python -m asr_jax.data.corpora.synthetic --out data/synthetic

writes `audio/SPLIT/*.flac` (16 kHz), `manifests/SPLIT.jsonl` and, as the last file, `corpus.json` (settings, counts,
elapsed seconds). The splits are train, validation and test. eSpeak NG speaks the sentences of a small grammar in many
voices, accents, rates, pitches and levels, without noise. The corpus shows that training works from end to end. It is
not human speech, and its error rates do not predict those of human speech.

No voice of the test split, nor a near twin of one, is in train or validation (`VOICES` in sentences.py), and no
sentence is in two splits: test and train share only words. The same settings produce the same bytes for any number of
processes, with the same package versions on the same kind of processor.
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
from asr_jax.core.files import write_whole
from asr_jax.core.options import parse
from asr_jax.core.text_files import read_text, use_utf8
from asr_jax.data.corpora import espeak
from asr_jax.data.corpora.sentences import RATE_HZ, SHARES, Corpus, Sentence, plan, waveform
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.utterances import Utterance

VERSION = 1
"""Version of the corpus. It is raised with every change that changes a byte."""

NUM_PER_PROCESS = 240
"""Number of utterances that one process speaks. Because of eSpeak's state, the corpus depends on it as it does on the
seed."""
_UNFINISHED = "corpus.unfinished"


def make_corpus(folder: str | os.PathLike[str], settings: Corpus, *, processes: int | None = None) -> dict[str, Any]:
    """Speaks the corpus into `folder` unless it exists, and returns the content of its `corpus.json`.

    Args:
        folder: Folder that is new, empty, or made by this function.
        processes: Number of processes that speak at the same time. None: one for each core.

    Raises:
        UserError: If eSpeak NG is not installed, or if the folder has a corpus of other settings or other files.
        RunError: If a process that speaks fails.
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
    write_whole(mark, json.dumps(corpus, indent=2) + "\n")
    mark.replace(folder / "corpus.json")
    return corpus


def _found(folder: Path, settings: Corpus) -> dict[str, Any]:
    """Content of the finished corpus in the folder.

    Raises:
        UserError: If it has other settings.
    """
    corpus = json.loads(read_text(folder / "corpus.json"))
    # A setting that corpus.json lacks is newer than the corpus, which was made with the setting's default.
    there = {"version": corpus.get("version"), **json.loads(json.dumps(asdict(Corpus()))), **corpus.get("settings", {})}
    asked = {"version": VERSION, **json.loads(json.dumps(asdict(settings)))}  # JSON turns tuples into lists
    differing = [f"{key} {there.get(key)} (requested: {asked[key]})" for key in asked if there.get(key) != asked[key]]
    if differing:
        raise UserError(
            f"{folder} has a corpus of other settings: {', '.join(differing)}; choose another folder or delete this one"
        )
    print(f"corpus: {folder} already exists")
    return corpus


def _clear(folder: Path) -> None:
    """Removes everything from the folder except for the mark of an unfinished corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / _UNFINISHED
    if any(folder.iterdir()) and not mark.exists():
        raise UserError(f"{folder} has files that are not of this corpus; choose a new or an empty folder")
    mark.touch()
    for name in ("audio", "manifests"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _speak_all(sentences: Sequence[Sentence], folder: Path, *, processes: int) -> None:
    parts = [sentences[start : start + NUM_PER_PROCESS] for start in range(0, len(sentences), NUM_PER_PROCESS)]
    with ThreadPoolExecutor(processes) as pool:
        for done, _ in enumerate(pool.map(partial(_in_new_process, folder), parts), start=1):
            print(f"corpus: {done} of {len(parts)} parts spoken", flush=True)


def _in_new_process(folder: Path, part: Sequence[Sentence]) -> None:
    # A process of a pool has spoken before and would speak differently, and multiprocessing runs the caller's script
    # again.
    code = "from asr_jax.data.corpora.synthetic import speak_part; speak_part()"
    content, root = pickle.dumps((part, folder)), Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], input=content, cwd=root, capture_output=True, check=False)
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip()
        raise RunError(f"a process that synthesises the corpus exited with code {done.returncode}: {message}")


def speak_part() -> None:
    """Speaks sentences that a new process receives on its standard input, pickled with their folder."""
    part, folder = pickle.load(sys.stdin.buffer)
    try:
        engine = espeak.Espeak()
        for sentence in part:
            write_flac(_path(sentence, folder), waveform(engine, sentence), RATE_HZ)
    except UserError as error:
        sys.exit(str(error))


def _write_set(split: str, sentences: Sequence[Sentence], folder: Path) -> dict[str, Any]:
    """Writes the manifest of one split and returns its counts."""
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
    """Digest of all audio files. Corpora with equal digests are equal."""
    digest = hashlib.sha256()
    for sentence in sentences:
        digest.update(_path(sentence, folder).read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """Command-line options of `asr_jax.data.corpora.synthetic`."""

    out: str
    """Folder of the corpus: new or empty."""
    minutes: float = Corpus.minutes
    """Approximate amount of speech in minutes."""
    seed: int = Corpus.seed
    """Seed of sentences and voices."""
    processes: int | None = None
    """Number of processes that synthesise. Default: one for each core."""


def main() -> None:
    """Entry point of the command."""
    try:
        given = parse(
            CorpusOptions,
            sys.argv[1:],
            prog="python -m asr_jax.data.corpora.synthetic",
            about=(__doc__ or "").split("\n")[0],
        )
        corpus = make_corpus(given.out, Corpus(minutes=given.minutes, seed=given.seed), processes=given.processes)
    except (UserError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", UserError.exit_code))
    sets = corpus["sets"].values()
    num, minutes, words = (sum(numbers[key] for numbers in sets) for key in ("utterances", "minutes", "words"))
    made = f"{num:,} utterances, {minutes:.1f} minutes, {words:,} words, made in {corpus['seconds_taken']} s"
    print(f"corpus: {made}: {Path(given.out) / 'manifests'}")


if __name__ == "__main__":
    use_utf8()
    main()
