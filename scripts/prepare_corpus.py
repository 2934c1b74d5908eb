"""Manifests of AN4, LJSpeech or Common Voice from the folder that their archive unpacks to.

    python scripts/prepare_corpus.py an4 ~/an4                       train, test
    python scripts/prepare_corpus.py ljspeech ~/LJSpeech-1.1         train: the corpus has no official split
    python scripts/prepare_corpus.py common-voice ~/cv-corpus/en     train, dev, test

writes `OUT/manifests/<split>.jsonl`, and `OUT/rejected.jsonl` with every line that has no audio and every file that has
no line. Audio is not copied; it is resampled when it is read. Texts are as the corpus has them (of LJSpeech the
normalised ones), but those of AN4, which are all in upper case, are in lower case.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from asr_jax.cli.command_line import run_command
from asr_jax.core.errors import UserError
from asr_jax.core.options import parse
from asr_jax.data.corpora.preparation import entry, pairs_of, parsed_lines, read_splits, write_splits
from asr_jax.data.manifests.readers.base import Entries
from asr_jax.data.manifests.readers.fields import InvalidEntry
from asr_jax.data.manifests.utterances import Rejected

AN4_FOLDERS = {"train": "an4_clstk", "test": "an4test_clstk"}
AN4_LINE = re.compile(r"(?:<s>)?(.*?)(?:</s>)?\s*\(([^()\s]+)\)\s*")


def an4(folder: Path) -> dict[str, Entries]:
    """`etc/an4_{train,test}.fileids` and `.transcription`; NIST SPHERE under `wav`."""
    return {split: _an4(folder, split) for split in _present(folder, "etc/an4_{}.fileids", AN4_FOLDERS)}


def _an4(folder: Path, split: str) -> Entries:
    rejected: list[Rejected] = []
    transcription = folder / f"etc/an4_{split}.transcription"
    texts = pairs_of(transcription, _an4_line, rejected)
    listed = pairs_of(folder / f"etc/an4_{split}.fileids", lambda line: (Path(line).name, line), rejected)
    yield from rejected
    paths = {path.stem: path for path in (folder / "wav" / AN4_FOLDERS[split]).rglob("*.sph")}
    paths |= {name: folder / "wav" / f"{path}.sph" for name, path in listed.items()}
    for name, path in sorted(paths.items()):
        yield entry(name, path, texts.get(name, ""), speaker=f"an4-{path.parent.name}", source=f"an4/{split}")
    for name in sorted(texts.keys() - paths.keys()):
        yield Rejected(name, str(transcription), "no such audio file")


def _an4_line(line: str) -> tuple[str, str]:
    found = AN4_LINE.fullmatch(line)
    if found is None:
        raise InvalidEntry(f"{line!r}; expected <s> TEXT </s> (id)")
    return found[2], found[1].strip().lower()


def ljspeech(folder: Path) -> dict[str, Entries]:
    """`metadata.csv` of `id|text|normalised text`; `wavs/<id>.wav`."""
    _present(folder, "{}", ("metadata.csv",))
    return {"train": _ljspeech(folder)}


def _ljspeech(folder: Path) -> Entries:
    rejected: list[Rejected] = []
    texts = pairs_of(folder / "metadata.csv", _ljspeech_line, rejected)
    yield from rejected
    files = {path.stem: path for path in (folder / "wavs").glob("*.wav")}
    for name in sorted(files.keys() | texts.keys()):
        path = folder / "wavs" / f"{name}.wav"
        yield entry(name, path, texts.get(name, ""), speaker="ljspeech", source="ljspeech")


def _ljspeech_line(line: str) -> tuple[str, str]:
    fields = line.split("|")
    if len(fields) != 3:
        raise InvalidEntry(f"{len(fields)} fields; expected 3: id|text|normalised text")
    return fields[0], fields[2].strip()


def common_voice(folder: Path) -> dict[str, Entries]:
    """`train.tsv`, `dev.tsv` and `test.tsv` with a line of names; audio under `clips`, of which they list a part."""
    return {split: _common_voice(folder, split) for split in _present(folder, "{}.tsv", ("train", "dev", "test"))}


def _common_voice(folder: Path, split: str) -> Entries:
    names: list[str] = []
    for values in parsed_lines(folder / f"{split}.tsv", lambda line: line.split("\t")):
        if isinstance(values, Rejected):
            yield values
        elif not names:
            names = values
            if missing := {"client_id", "path", "sentence"} - set(names):
                raise UserError(f"{folder / split}.tsv: no column {', '.join(sorted(missing))} in its first line")
        else:
            # Columns at the end that are empty may be left out.
            row = dict.fromkeys(names, "") | dict(zip(names, values, strict=False))
            path, text = folder / "clips" / row["path"], row["sentence"].strip()
            yield entry(path.stem, path, text, speaker=row["client_id"], source=f"common-voice/{split}")


def _present(folder: Path, pattern: str, splits: Iterable[str]) -> list[str]:
    """The splits whose file is there. Raises: UserError where none is."""
    if found := [split for split in splits if (folder / pattern.format(split)).is_file()]:
        return found
    expected = " or ".join(pattern.format(split) for split in splits)
    deeper = [path for split in splits for path in sorted(folder.glob(f"*/{pattern.format(split)}"))]
    where = deeper[0].parents[pattern.count("/")] if deeper else None
    raise UserError(f"{folder} has no {expected}" + (f"; did you mean {where}?" if where else "; check the path"))


Layout = Literal["an4", "ljspeech", "common-voice"]
LAYOUTS: dict[Layout, Callable[[Path], dict[str, Entries]]] = {
    "an4": an4,
    "ljspeech": ljspeech,
    "common-voice": common_voice,
}


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """Options of `scripts/prepare_corpus.py`."""

    layout: Positional[Layout]
    """Layout of the corpus."""
    folder: Positional[Path]
    """Folder of the corpus."""
    out: Path | None = None
    """Folder to write to. Default: data/LAYOUT."""


def main(arguments: Sequence[str]) -> None:
    given = parse(CorpusOptions, arguments, prog="python scripts/prepare_corpus.py", about=__doc__)
    found, rejected = read_splits(LAYOUTS[given.layout](given.folder.absolute()))
    write_splits(given.out or Path("data") / given.layout, found, rejected)


if __name__ == "__main__":
    run_command(main)
