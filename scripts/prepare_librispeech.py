"""Writes manifests and fairseq lists of LibriSpeech, from a local copy or a download.

The folder has the official layout: `<subset>/<speaker>/<chapter>/*.flac` and `*.trans.txt`.

    python scripts/prepare_librispeech.py --librispeech ~/LibriSpeech --out data/librispeech
    python scripts/prepare_librispeech.py --librispeech ~/LibriSpeech --download train-clean-100 dev-clean dev-other

Writes `OUT/manifests/<subset>.jsonl` and `OUT/fairseq/<subset>.{tsv,ltr,wrd}` for every subset in the folder, and for
train-960 if its three parts exist. dict.ltr.txt belongs to the largest training set. `OUT/rejected.jsonl` contains
every line without audio and every file without a line. Audio is not copied. Texts are in lower case; those of fairseq
are in upper case, as in the corpus and in fairseq's models.

Libri-light's limited-resource subsets are a published selection of utterances of train-clean-100 and train-other-500,
librispeech_finetuning.tgz: `1h/{0…5}/{clean,other}` and `9h/{clean,other}`. With `--limited` (its folder or the .tgz),
or if its folder is beside the subsets, these subsets are also written: train-10min-0 … train-10min-5, train-1h (all
six) and train-10h (1h and 9h).
"""

import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated

from corpora.archives import unpack
from corpora.preparation import entry, pairs_of, read_splits, write_splits
from tyro.conf import arg

from asr_jax.cli.command_line import run_command
from asr_jax.core.downloads import Archive, fetch
from asr_jax.core.errors import UserError
from asr_jax.core.options import parse
from asr_jax.data.manifests.readers.base import Entries
from asr_jax.data.manifests.readers.fairseq import DICTIONARY, write_fairseq
from asr_jax.data.manifests.utterances import Rejected, Utterance

TRAIN_960 = ("train-clean-100", "train-clean-360", "train-other-500")
SUBSETS = (*TRAIN_960, "dev-clean", "dev-other", "test-clean", "test-other")
MINI_SUBSETS = ("train-clean-5", "dev-clean-2")
ALL_SUBSETS = SUBSETS + MINI_SUBSETS
LIMITED = "librispeech_finetuning"
# From md5sum.txt of https://www.openslr.org/12 and https://www.openslr.org/31.
MD5 = {
    "train-clean-100": "2a93770f6d5c6c964bc36631d331a522",
    "train-clean-360": "c0e676e450a7ff2f54aeade5171606fa",
    "train-other-500": "d1a0fd59409feb2c614ce4d30c387708",
    "dev-clean": "42e2234ba48799c1f50f24a7926300a1",
    "dev-other": "c8d0bcc9cca99d4f8b62fcc847357931",
    "test-clean": "32fa31d27d2e1cad72775fee3f4849a9",
    "test-other": "fb5a50374b501bb3bac4815ee91d3135",
    "train-clean-5": "5df7d4e78065366204ca6845bb08f490",
    "dev-clean-2": "6d7ab67ac6a1d2c993d050e16d61080d",
}
# The checksum is from torchaudio's reader; Libri-light publishes none.
LIMITED_ARCHIVE = Archive(
    f"https://dl.fbaipublicfiles.com/librilight/data/{LIMITED}.tgz",
    "sha256:5d1efdc777b548194d7e09ba89126e2188026df9fd57aa57eb14408d2b2342af",
)
OF_LIMITED = re.compile(r"(?:^|/)(?:1h/([0-5])|9h)/(?:clean|other)/\d+/\d+/(\d+-\d+-\d+)\.flac$")


def subsets_in(folder: Path) -> Path | None:
    """Folder that contains the subsets, `folder` or `folder/LibriSpeech`; None if neither does."""
    roots = (folder, folder / "LibriSpeech")
    return next((root for root in roots if any((root / name).is_dir() for name in ALL_SUBSETS)), None)


def download(folder: Path, names: Iterable[str], mirror: str) -> None:
    """Downloads, checks and unpacks the missing subsets; an existing archive is used.

    Args:
        folder: Folder with the subsets, or its parent.
        names: Subsets to download.
        mirror: Server of the files of OpenSLR.

    Raises:
        RunError: If an archive cannot be downloaded or has another checksum.
    """
    root = subsets_in(folder) or folder
    for name in names:
        if (root / name).is_dir():
            print(f"{root / name} exists and is not downloaded")
            continue
        resource = 31 if name in MINI_SUBSETS else 12
        archive = Archive(f"{mirror}/resources/{resource}/{name}.tar.gz", f"md5:{MD5.get(name)}")
        path = fetch(LIMITED_ARCHIVE if name == LIMITED else archive, root)
        print(f"{path} is complete; unpacking it to {root / name} (the archive can be deleted afterwards)")
        unpack(path, root / name if name == LIMITED else root)


def read_subset(root: Path, subset: str) -> Entries:
    """Yields the utterances of a subset, sorted by speaker, chapter and id."""
    for chapter in sorted(path for path in (root / subset).glob("*/*") if path.is_dir()):
        files = {path.stem: path for path in chapter.glob("*.flac")}
        texts: dict[str, str] = {}
        rejected: list[Rejected] = []
        for path in sorted(chapter.glob("*.trans.txt")):
            texts |= pairs_of(path, _id_and_text, rejected)
        yield from rejected
        for name in sorted(files.keys() | texts.keys()):
            yield entry(
                name, files.get(name, chapter / f"{name}.flac"), texts.get(name, ""),
                speaker=f"librispeech-{chapter.parent.name}", source=f"librispeech/{subset}",
            )  # fmt: skip


def _id_and_text(line: str) -> tuple[str, str]:
    name, _, text = line.partition(" ")
    return name, text.strip().lower()


def limited_ids(path: Path) -> dict[str, dict[str, str]]:
    """Paths of the utterances of each limited-resource subset in Libri-light's folder or .tgz, keyed by subset and id.

    Raises:
        UserError: If the path is neither Libri-light's folder nor its .tgz.
    """
    try:
        if path.is_dir():
            names = [file.relative_to(path).as_posix() for file in path.rglob("*.flac")]
        else:
            with tarfile.open(path) as tar:
                names = tar.getnames()
    except (tarfile.TarError, FileNotFoundError, EOFError):
        names = []
    sets: dict[str, dict[str, str]] = {}
    for name in sorted(names):
        if found := OF_LIMITED.search(name):
            fold, utterance = found.groups()
            for subset in ("train-10h",) if fold is None else (f"train-10min-{fold}", "train-1h", "train-10h"):
                sets.setdefault(subset, {})[utterance] = f"{path}/{name}"
    if not sets:
        raise UserError(f"{path} has no 1h/0/clean/SPEAKER/CHAPTER/*.flac; expected Libri-light's {LIMITED} (or .tgz)")
    return dict(sorted(sets.items()))


def limited(
    sets: Mapping[str, Mapping[str, str]], found: Mapping[str, Sequence[Utterance]]
) -> tuple[dict[str, list[Utterance]], list[Rejected]]:
    """Selects the subsets of `limited_ids` from the official ones; returns them, sorted by id, and what is missing."""
    parts = [subset for subset in ALL_SUBSETS if subset.startswith("train") and subset in found]
    official = {utterance.id: utterance for part in reversed(parts) for utterance in found[part]}
    for subset, ids in sets.items():
        if missing := len(ids.keys() - official.keys()):
            print(f"{subset}: {missing} of its {len(ids)} utterances are missing; it is not Libri-light's {subset}")
    reason = f"in Libri-light's selection, but not in the subsets here: {', '.join(parts) or 'none for training'}"
    rejected = [Rejected(name, at, reason) for name, at in sets.get("train-10h", {}).items() if name not in official]
    chosen = {subset: [official[name] for name in sorted(ids.keys() & official.keys())] for subset, ids in sets.items()}
    return chosen, rejected


def prepare(librispeech: Path, out: Path, *, limited_at: Path | None) -> None:
    """Writes manifests and lists; prints found and missing subsets and rejected utterances.

    Args:
        librispeech: Folder with the subsets, or its parent.
        out: Folder to write to.
        limited_at: Libri-light's folder or .tgz; None: the folder beside the subsets, if it exists.

    Raises:
        UserError: If there is no subset, or all utterances are rejected.
    """
    root = subsets_in(librispeech.absolute())
    if root is None:
        what = "has none of the subsets" if librispeech.is_dir() else "is not a folder; expected one with the subsets"
        raise UserError(f"{librispeech} {what} {', '.join(ALL_SUBSETS)}; --download SUBSET … downloads them")
    beside = root / LIMITED
    sets = limited_ids(limited_at or beside) if limited_at or beside.is_dir() else {}
    there = [subset for subset in ALL_SUBSETS if (root / subset).is_dir()]
    found, rejected = read_splits({subset: read_subset(root, subset) for subset in there})
    chosen, missing = limited(sets, found)
    found |= chosen
    if all(found.get(subset) for subset in TRAIN_960):
        found["train-960"] = list(chain.from_iterable(found[subset] for subset in TRAIN_960))
    else:
        print(f"train-960.jsonl, which configs/zipformer.py trains on, is not written: it needs {', '.join(TRAIN_960)}")
    write_splits(out, found, rejected + missing)
    write_lists(out / "fairseq", found)
    if absent := [subset for subset in SUBSETS if not found.get(subset)]:
        print(f"missing: {', '.join(absent)} (--download SUBSET … downloads them)")


def write_lists(folder: Path, found: Mapping[str, Sequence[Utterance]]) -> None:
    """Writes the lists of every subset for fairseq."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DICTIONARY).unlink(missing_ok=True)
    by_size = sorted(found.items(), key=lambda item: (item[0].startswith("train"), len(item[1])))
    for subset, utterances in reversed(by_size):  # the first one writes dict.ltr.txt
        if utterances:
            write_fairseq(str(folder / f"{subset}.tsv"), (replace(row, text=row.text.upper()) for row in utterances))


@dataclass(frozen=True, kw_only=True)
class LibriSpeechOptions:
    """Options of `scripts/prepare_librispeech.py`."""

    librispeech: Path
    """Folder with the subsets, or its parent."""
    out: Path = Path("data/librispeech")
    """Folder to write to."""
    download: Annotated[tuple[str, ...], arg(metavar="SUBSET …")] = ()
    """Subsets to download if they are missing: names of OpenSLR, or librispeech_finetuning."""
    mirror: str = "https://www.openslr.org"
    """Server of the files of OpenSLR."""
    limited: Path | None = None
    """Folder or .tgz of Libri-light's limited-resource data (librispeech_finetuning)."""


def main(arguments: Sequence[str]) -> None:
    given = parse(LibriSpeechOptions, arguments, prog="python scripts/prepare_librispeech.py", about=__doc__)
    if unknown := sorted({*given.download} - {*MD5, LIMITED}):
        raise UserError(f"--download {' '.join(unknown)}: expected some of {', '.join((*MD5, LIMITED))}")
    download(given.librispeech, given.download, given.mirror.rstrip("/"))
    prepare(given.librispeech, given.out, limited_at=given.limited)


if __name__ == "__main__":
    run_command(main)
