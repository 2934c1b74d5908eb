"""Audio alone: every format is read without texts if this is requested, and limits on texts do not apply."""

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recordings import RATE, jsonl, noise, write

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.errors import UserError
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data, plan_training
from asr_jax.data.batching.filters import Filters
from asr_jax.data.batching.sets import read_sets, read_training
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.reading import Utterances, read_utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.characters import NoTokenizer
from asr_jax.text.tokenizers import TokenizerSettings

NUM = 3
NOTHING = TokenizerSettings(kind="none")


def audio(folder: Path) -> list[Path]:
    return [write(folder / f"{number}.wav", noise(number, 1600 + number)) for number in range(NUM)]


def json_lines(folder: Path) -> Path:
    return jsonl(folder / "m.jsonl", *({"audio_path": str(path), "duration": 0.1} for path in audio(folder)))


def bare_folder(folder: Path) -> Path:
    return audio(folder / "set")[0].parent


def shard(folder: Path) -> Path:
    with tarfile.open(folder / "shard.tar", "w") as archive:
        for path in audio(folder):
            archive.add(path, path.name)
    return folder / "shard.tar"


def kaldi(folder: Path) -> Path:
    (folder / "set").mkdir()
    (folder / "set" / "wav.scp").write_text("".join(f"{path.stem} {path}\n" for path in audio(folder)))
    return folder / "set"


def lhotse(folder: Path) -> Path:
    def cut(path: Path) -> dict[str, Any]:
        source = {"type": "file", "channels": [0], "source": str(path)}
        recording = {"id": path.stem, "sources": [source], "sampling_rate": RATE, "duration": 0.1, "channel_ids": [0]}
        plain = {"id": path.stem, "start": 0.0, "duration": 0.1, "channel": 0, "type": "MonoCut"}
        return plain | {"supervisions": [], "recording": recording}

    return jsonl(folder / "cuts.jsonl", *map(cut, audio(folder)))


def fairseq(folder: Path) -> Path:
    (folder / "train.tsv").write_text("/\n" + "".join(f"{path}\t1600\n" for path in audio(folder)))
    return folder / "train.tsv"


def csv(folder: Path) -> Path:
    (folder / "t.csv").write_text("audio_path,duration\n" + "".join(f"{path},0.1\n" for path in audio(folder)))
    return folder / "t.csv"


def parquet(folder: Path) -> Path:
    pq.write_table(pa.table({"audio_path": [str(path) for path in audio(folder)]}), folder / "t.parquet")
    return folder / "t.parquet"


FORMATS = [json_lines, bare_folder, shard, kaldi, lhotse, fairseq, csv, parquet]


@pytest.mark.parametrize("made", FORMATS, ids=lambda made: made.__name__)
def test_every_format_is_read_without_texts(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    path = made(tmp_path)
    cache = str(tmp_path / "cache")
    if made is not fairseq:  # fairseq's texts are in other files and optional
        with pytest.raises(UserError):
            read_utterances([path], cache=cache)
    utterances = read_utterances([path], cache=cache, options=ReadOptions(texts_may_lack=True))
    assert [utterance.text for utterance in utterances] == [""] * NUM
    assert not utterances.rejected
    data = Data(train=(str(path),), validation=(str(path),), tokenizer=NOTHING, cache=cache)
    assert len(read_training(data, seed=0)) == len(read_sets(data, seed=0).validation) == NUM


def test_what_was_read_with_and_without_texts_is_kept_apart(tmp_path: Path) -> None:
    first, *others = audio(tmp_path)
    rows = [{"audio_path": str(path), "duration": 0.1} for path in others]
    path = jsonl(tmp_path / "m.jsonl", {"audio_path": str(first), "duration": 0.1, "text": "a"}, *rows)
    for _ in range(2):
        cache = str(tmp_path / "cache")
        assert len(read_utterances([path], cache=cache, options=ReadOptions(texts_may_lack=True))) == NUM
        strict = read_utterances([path], cache=cache)
        assert (len(strict), len(strict.rejected)) == (1, NUM - 1)


def test_rules_about_texts_and_room_for_labels_do_not_count() -> None:
    """Texts and token ids are in the data, but they are not used."""
    made = [Utterance(str(i), f"/{i}.flac", "a" * 999, 1.0 + i / 10, labels=(i, 9)) for i in range(8)]
    made += [Utterance("short", "/s.flac", "", 0.01), Utterance("long", "/l.flac", "", 99.0)]
    data = Data(
        train=("x",),
        tokenizer=NOTHING,
        batching=Batching.planned(num_buckets=2, row_multiple=2),
        filters=Filters(min_chars=1),
    )
    planned = plan_training(
        Utterances.of(made), data, tokenizer=NoTokenizer(), output_length=lambda n, of_features: n // 640,
        frames_needed=np.add,
        front_end=KaldiFbank(), seed=0,
    )  # fmt: skip
    assert planned.rejections.utterances == {"too short": 1, "too long": 1}
    assert len(planned.index) == 8
    assert {bucket.num_tokens for bucket in planned.plan.buckets} == {0}
    assert not planned.index.num_labels().any()
    rows = np.concatenate([planned.plan[n].rows for n in range(planned.plan.batches_per_epoch)])
    assert sorted(rows[rows >= 0]) == list(range(8))
