"""Writes manifests of LJSpeech or Common Voice from the unpacked archive of the corpus.

    python scripts/prepare_corpus.py ljspeech ~/LJSpeech-1.1         train: the corpus has no official split
    python scripts/prepare_corpus.py common-voice ~/cv-corpus/en     train, dev, test

Writes `OUT/manifests/<split>.jsonl`, and `OUT/rejected.jsonl` with every line without audio and every file without a
line. Audio is not copied; it is resampled when it is read. Texts are those of the corpus (for LJSpeech the normalised
ones).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from corpora.preparation import entry, pairs_of, read_splits, write_splits
from tyro.conf import Positional

from asr_jax.cli.command_line import run_command
from asr_jax.core.errors import UserError
from asr_jax.core.options import parse
from asr_jax.data.manifests.readers.base import Entries
from asr_jax.data.manifests.readers.fields import InvalidEntry
from asr_jax.data.manifests.readers.text_tables import rows_of
from asr_jax.data.manifests.utterances import Rejected


def ljspeech(folder: Path) -> dict[str, Entries]:
    """Reads `metadata.csv` with lines of `id|text|normalised text`, and `wavs/<id>.wav`."""
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
    """Reads `train.tsv`, `dev.tsv` and `test.tsv` with headers, and the audio under `clips` that they list."""
    return {split: _common_voice(folder, split) for split in _present(folder, "{}.tsv", ("train", "dev", "test"))}


def _common_voice(folder: Path, split: str) -> Entries:
    names: list[str] = []
    table = str(folder / f"{split}.tsv")
    for number, values in rows_of(table, "\t"):
        if isinstance(values, InvalidEntry):
            yield Rejected(f"{table}:{number}", f"{table}:{number}", str(values))
        elif not names:
            names = values
            if missing := {"client_id", "path", "sentence"} - set(names):
                raise UserError(f"{folder / split}.tsv: no column {', '.join(sorted(missing))} in its first line")
        else:
            # Lines may omit empty columns at their end.
            row = dict.fromkeys(names, "") | dict(zip(names, values, strict=False))
            path, text = folder / "clips" / row["path"], row["sentence"].strip()
            yield entry(path.stem, path, text, speaker=row["client_id"], source=f"common-voice/{split}")


def _present(folder: Path, pattern: str, splits: Iterable[str]) -> list[str]:
    """Splits whose file exists.

    Raises:
        UserError: If none exists.
    """
    if found := [split for split in splits if (folder / pattern.format(split)).is_file()]:
        return found
    expected = " or ".join(pattern.format(split) for split in splits)
    deeper = [path for split in splits for path in sorted(folder.glob(f"*/{pattern.format(split)}"))]
    where = deeper[0].parents[pattern.count("/")] if deeper else None
    raise UserError(f"{folder} has no {expected}" + (f"; did you mean {where}?" if where else "; check the path"))


Layout = Literal["ljspeech", "common-voice"]
LAYOUTS: dict[Layout, Callable[[Path], dict[str, Entries]]] = {
    "ljspeech": ljspeech,
    "common-voice": common_voice,
}


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """Options of `scripts/prepare_corpus.py`."""

    layout: Positional[Layout]
    """Name of the corpus."""
    folder: Positional[Path]
    """Folder of the unpacked corpus."""
    out: Path | None = None
    """Folder to write to. Default: data/LAYOUT."""


def main(arguments: Sequence[str]) -> None:
    given = parse(CorpusOptions, arguments, prog="python scripts/prepare_corpus.py", about=__doc__)
    found, rejected = read_splits(LAYOUTS[given.layout](given.folder.absolute()))
    write_splits(given.out or Path("data") / given.layout, found, rejected)


if __name__ == "__main__":
    run_command(main)
