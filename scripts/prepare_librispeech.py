"""Manifests of LibriSpeech from a copy of its official layout: `<subset>/<speaker>/<chapter>/*.flac` + `*.trans.txt`.

    python scripts/prepare_librispeech.py --librispeech ~/LibriSpeech --out data/librispeech

writes `OUT/manifests/<subset>.jsonl` for every subset that is there, `train-960.jsonl` where its three parts are, and
`skipped.jsonl` with every line that has no audio and every file that has no line. Nothing is copied.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from asr_jax.audio.io import AudioError, probe
from asr_jax.command_line import run_command
from asr_jax.core.errors import UserError
from asr_jax.data.manifest import Record, write_manifest

TRAIN_960 = ("train-clean-100", "train-clean-360", "train-other-500")
SUBSETS = (*TRAIN_960, "dev-clean", "dev-other", "test-clean", "test-other")
MINI_SUBSETS = ("train-clean-5", "dev-clean-2")
DOWNLOAD = "https://www.openslr.org/12"

Skipped = dict[str, str]


def find_root(folder: Path) -> Path:
    """The folder that holds the subsets: `folder` itself or `LibriSpeech` in it."""
    for root in (folder, folder / "LibriSpeech"):
        if any((root / subset).is_dir() for subset in SUBSETS + MINI_SUBSETS):
            return root.absolute()
    what = "has none of the subsets" if folder.is_dir() else "is no folder; expected one with the subsets"
    raise UserError(f"{folder} {what} {', '.join(SUBSETS + MINI_SUBSETS)}; unpack some of {DOWNLOAD} there")


def read_chapter(chapter: Path, subset: str) -> tuple[list[Record], list[Skipped]]:
    """Records of one chapter by utterance id, and what has audio without a line or a line without audio."""
    files = {path.stem: path for path in chapter.glob("*.flac")}
    lines: dict[str, str] = {}
    for path in sorted(chapter.glob("*.trans.txt")):
        pairs = (line.partition(" ") for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
        lines |= {name: text.strip() for name, _, text in pairs}
    records, skipped = [], []
    for name in sorted(files.keys() | lines.keys()):
        path = files.get(name, chapter / f"{name}.flac")
        record = _record(name, path, lines.get(name), name in files, subset)
        if isinstance(record, Record):
            records.append(record)
        else:
            skipped.append({"id": name, "audio_path": str(path), "reason": record})
    return records, skipped


def _record(name: str, path: Path, text: str | None, is_there: bool, subset: str) -> Record | str:
    """The record, or why there is none."""
    if not is_there:
        return "in the transcript, but no such audio file"
    if not text:
        return "no line in the transcript"
    try:
        duration_s = probe(path).duration_s
    except AudioError as error:
        return error.reason
    speaker = f"librispeech-{path.parent.parent.name}"
    return Record(name, str(path), text.lower(), round(duration_s, 6), speaker, f"librispeech/{subset}")


def read_subset(root: Path, subset: str, *, threads: int) -> tuple[list[Record], list[Skipped]]:
    """All chapters of a subset, in the order of speakers, chapters and utterances."""
    chapters = sorted(path for path in (root / subset).glob("*/*") if path.is_dir())
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(lambda chapter: read_chapter(chapter, subset), chapters))
    return list(chain.from_iterable(part[0] for part in parts)), list(chain.from_iterable(part[1] for part in parts))


def prepare(librispeech: Path, out: Path, *, threads: int = 8) -> None:
    """Writes the manifests and says what was found, what was skipped and which subsets are missing.

    Raises: UserError where there is no subset, or none of its utterances can be used.
    """
    root = find_root(librispeech)
    manifests = out / "manifests"
    found: dict[str, list[Record]] = {}
    all_skipped: list[Skipped] = []
    for subset in SUBSETS + MINI_SUBSETS:
        if not (root / subset).is_dir():
            continue
        records, skipped = read_subset(root, subset, threads=threads)
        all_skipped += skipped
        _tell_skipped(subset, skipped)
        if records:
            found[subset] = records
            _write(manifests / f"{subset}.jsonl", records)
        else:
            print(f"{subset}: no utterance; no manifest written")
    if all(subset in found for subset in TRAIN_960):
        _write(manifests / "train-960.jsonl", chain.from_iterable(found[subset] for subset in TRAIN_960))
    else:
        print(f"no train-960.jsonl, which configs/zipformer.py trains on: it is made of {', '.join(TRAIN_960)}")
    (out / "skipped.jsonl").unlink(missing_ok=True)
    if all_skipped:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in all_skipped)
        out.mkdir(parents=True, exist_ok=True)
        (out / "skipped.jsonl").write_text(lines, encoding="utf-8")
        print(f"skipped: {len(all_skipped)}, each with its reason in {out / 'skipped.jsonl'}")
    if missing := [subset for subset in SUBSETS if subset not in found]:
        print(f"not there: {', '.join(missing)} (to be had at {DOWNLOAD})")
    if not found:
        raise UserError(f"{root}: no utterance with audio and text; unpack a subset of {DOWNLOAD} anew")


def _write(path: Path, records: Iterable[Record]) -> None:
    records = list(records)
    write_manifest(path, records)
    hours = sum(record.duration_s for record in records) / 3600
    speakers = len({record.speaker for record in records})
    print(f"{path}: {len(records)} utterances, {hours:.2f} h, {speakers} speakers")


def _tell_skipped(subset: str, skipped: list[Skipped]) -> None:
    for reason in dict.fromkeys(row["reason"] for row in skipped):
        names = [row["id"] for row in skipped if row["reason"] == reason]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        print(f"{subset}: {len(names)} skipped, {reason}: {', '.join(names[:5])}{more}")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--librispeech", type=Path, required=True, help="folder with the subsets, or the one above it")
    parser.add_argument("--out", type=Path, default=Path("data/librispeech"), help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=8, help="files read at a time; default: %(default)s")
    given = parser.parse_args(arguments)
    prepare(given.librispeech, given.out, threads=given.threads)


if __name__ == "__main__":
    run_command(main)
