"""Writes manifests of AN4 (CMU, 1991: 948 training and 130 test utterances of spelled words, numbers and commands).

    python scripts/prepare_an4.py --an4 ~/an4 --out data/an4
    python scripts/prepare_an4.py --an4 data/an4 --download

The folder has CMU's layout: `etc/an4_{train,test}.{fileids,transcription}` and `wav/…`, either NIST's SPHERE files or
raw 16-bit big-endian samples of 16 kHz. Writes `OUT/manifests/{train,dev,test}.jsonl`. As in ESPnet's recipe, dev has
the first 100 training utterances in the order of speaker and utterance, and train has the other 848, so no speaker is
in two sets. SPHERE files are not copied; raw samples are written to `OUT/audio` as FLAC. `OUT/rejected.jsonl` contains
every utterance without text or audio.

--download fetches NVIDIA's copy of CMU's archive. Without a network, download an4_sphere.tar.gz from
http://www.speech.cs.cmu.edu/databases/an4/ on another machine, unpack it, and give its folder `an4` as --an4.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from corpora.archives import unpack
from corpora.preparation import entry, pairs_of, read_splits, write_splits

from asr_jax.audio.io import write_flac
from asr_jax.cli.command_line import run_command
from asr_jax.core.downloads import Archive, fetch
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.options import parse
from asr_jax.data.manifests.readers.fields import InvalidEntry
from asr_jax.data.manifests.utterances import Rejected, Utterance

RATE_HZ = 16_000
NUM_DEV = 100
SIZES = {"dev": NUM_DEV, "train": 848, "test": 130}
FOLDERS = {"train": "an4_clstk", "test": "an4test_clstk"}
SOURCE = "an4"
# The checksum is that of NVIDIA's mirror; CMU publishes none.
ARCHIVE = Archive(
    "https://dldata-public.s3.us-east-2.amazonaws.com/an4_sphere.tar.gz",
    "sha256:a0525579493735d32b60fb6fa5975dd0eaacde087b0a4eeb7f13b7ef33077b12",
)
LINE = re.compile(r"(?:<s> )?(?P<text>.*?)(?: </s>)? *\((?P<id>[^()]+)\)")


def read_set(root: Path, name: str, audio: Path) -> list[Utterance | Rejected]:
    """Returns the utterances of the official training or test set, in the order of speaker and utterance.

    An utterance without audio keeps its place, so that the border between dev and train is always the same.

    Args:
        root: Folder with `etc` and `wav`.
        name: train or test.
        audio: Folder for the FLAC files of raw samples.

    Raises:
        UserError: If a file of `etc` cannot be read.
    """
    rejected: list[Rejected] = []
    texts = pairs_of(root / f"etc/an4_{name}.transcription", _id_and_text, rejected)
    files = pairs_of(root / f"etc/an4_{name}.fileids", _id_and_file, rejected)
    rejected += [Rejected(each, f"etc/an4_{name}.fileids", "no file") for each in sorted(texts.keys() - files.keys())]
    there = {path.stem: path for path in (root / "wav" / FOLDERS[name]).glob("*/*") if path.suffix in (".sph", ".raw")}
    rejected += [
        Rejected(each, str(path), f"no line in an4_{name}.fileids")
        for each, path in sorted(there.items())
        if each not in files
    ]
    found: list[Utterance | Rejected] = []
    for each in sorted(files, key=_speaker_first):
        try:
            path = _audio(root / "wav" / files[each], audio)
        except InvalidEntry as error:
            found.append(Rejected(each, f"wav/{files[each]}", str(error)))
        else:
            speaker = f"{SOURCE}-{_speaker_first(each)[0]}"
            found.append(entry(each, path, texts.get(each, ""), speaker=speaker, source=SOURCE))
    return [*found, *rejected]


def _id_and_text(line: str) -> tuple[str, str]:
    matched = LINE.fullmatch(line.strip())
    if not matched:
        raise InvalidEntry(f"{line!r}: expected a text and an id in parentheses")
    return matched["id"], matched["text"].strip().lower()


def _id_and_file(line: str) -> tuple[str, str]:
    name = line.strip().rpartition("/")[2]
    if "-" not in name:
        raise InvalidEntry(f"{line!r}: expected a path that ends in UTTERANCE-SPEAKER, such as an251-fash-b")
    return name, line.strip()


def _speaker_first(name: str) -> tuple[str, ...]:
    """Returns speaker, utterance and channel of an id such as an251-fash-b."""
    utterance, speaker, *rest = name.split("-")
    return speaker, utterance, *rest


def _audio(stem: Path, audio: Path) -> Path:
    """Returns the SPHERE file, or a new FLAC file of the raw samples.

    Raises:
        InvalidEntry: If there is neither, or the raw file is not of 16-bit samples.
    """
    sphere, raw = stem.with_name(f"{stem.name}.sph"), stem.with_name(f"{stem.name}.raw")
    if sphere.exists():
        return sphere
    if not raw.exists():
        raise InvalidEntry("no .sph or .raw file")
    content = raw.read_bytes()
    if not content or len(content) % 2:
        raise InvalidEntry(f"{len(content)} bytes: expected samples of 16 bits")
    audio.mkdir(parents=True, exist_ok=True)
    path = audio / f"{stem.name}.flac"
    write_flac(str(path), np.frombuffer(content, ">i2").astype(np.int16), RATE_HZ)
    return path


def prepare(an4: Path, out: Path) -> None:
    """Writes the manifests and prints their sizes.

    Raises:
        UserError: If the folder is not AN4, or all utterances are rejected.
    """
    root = _root(an4)
    if root is None:
        raise UserError(
            f"{an4} has no etc/an4_train.fileids: expected the folder of the unpacked an4_sphere.tar.gz or "
            "an4_raw.bigendian.tar.gz; --download downloads it"
        )
    audio = out.absolute() / "audio"
    train, test = (read_set(root.absolute(), name, audio) for name in ("train", "test"))
    found, rejected = read_splits({"dev": train[:NUM_DEV], "train": train[NUM_DEV:], "test": test})
    sizes = {name: len(found[name]) for name in SIZES}
    if sizes != SIZES:
        print(f"warning: numbers of utterances {sizes}, expected {SIZES}: error rates are of a part of AN4")
    write_splits(out, {name: found[name] for name in ("train", "dev", "test")}, rejected)


def _root(an4: Path) -> Path | None:
    """Returns the folder with `etc` and `wav`: the given one or its subfolder; None if neither has them."""
    return next((each for each in (an4, an4 / "an4") if (each / "etc/an4_train.fileids").exists()), None)


@dataclass(frozen=True, kw_only=True)
class AN4Options:
    """Options of `scripts/prepare_an4.py`."""

    an4: Path
    """Folder with `etc` and `wav`, or its parent. With --download, the archive is unpacked here."""
    out: Path = Path("data/an4")
    """Folder to write to."""
    download: bool = False
    """Download the corpus (64 MB) if it is missing."""


def main(arguments: Sequence[str]) -> None:
    given = parse(AN4Options, arguments, prog="python scripts/prepare_an4.py", about=__doc__)
    if given.download and not _root(given.an4):
        try:
            unpack(fetch(ARCHIVE, given.an4), given.an4)
        except RunError as error:
            raise RunError(
                f"{error}. Without a network: unpack an4_sphere.tar.gz of http://www.speech.cs.cmu.edu/databases/an4/, "
                "and give its folder as --an4"
            ) from error
    prepare(given.an4, given.out)


if __name__ == "__main__":
    run_command(main)
