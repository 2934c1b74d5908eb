"""Index: every limit counts and names rejected utterances, and accepted ones are unchanged."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.data.batching.buckets import Scale
from asr_jax.data.batching.filters import Filters
from asr_jax.data.batching.index import Index, build_index
from asr_jax.data.batching.labels import repeats
from asr_jax.data.manifests.columns import Ragged
from asr_jax.data.manifests.reading import Utterances, read_utterances
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.text.characters import CharacterTokenizer
from tests.support import approx

SCALE = Scale(per_s=100, hop=10, num_values=80)
FRAMES = Scale(per_s=10, hop=1, num_values=80, of_features=True)
GOOD = Utterance("good", "/a/good.wav", "abba", 2.0, "s", "set")
LETTERS = CharacterTokenizer(symbols=(*"abcdefghij", None), normaliser="none")


def frames(samples: Any) -> Any:
    return samples // 10


def build(*utterances: Utterance, **options: Any) -> Any:
    given = {"tokenizer": LETTERS, "output_length": frames, "frames_needed": np.add, "scale": SCALE}
    return build_index(Utterances.of(utterances), **(given | options))


def ids(index: Index) -> list[str]:
    return [utterance.id for utterance in index.utterances]


def test_columns_hold_what_the_records_say() -> None:
    other = Utterance("zwei", "/b/ö.wav", "jja", 1.234, "", "else")
    index, rejections = build(GOOD, other, replace(GOOD, id="three"))
    assert not rejections.entries
    assert len(index) == 3
    assert index.lengths.tolist() == [200, 123, 200]
    assert index.hours == approx(5.23 / 3600)
    assert [index.labels_of(row).tolist() for row in range(3)] == [[0, 1, 1, 0], [9, 9, 0], [0, 1, 1, 0]]
    assert index.labels.values.dtype == np.uint8
    assert index.num_labels().tolist() == [4, 3, 4]
    assert list(index.utterances) == [GOOD, other, replace(GOOD, id="three")]


FILTERS = Filters(min_duration_s=0.5, max_duration_s=10.0, min_chars_per_s=1.0, max_chars_per_s=5.0)


@pytest.mark.parametrize(
    ("changes", "reason", "value", "limit"),
    [
        ({"duration_s": 0.4}, "too short", 0.4, 0.5),
        ({"duration_s": -1.0}, "too short", -1.0, 0.5),
        ({"duration_s": 10.5}, "too long", 10.5, 10.0),
        ({"text": ""}, "too few characters per second", 0.0, 1.0),
        ({"text": "a"}, "too few characters per second", 0.5, 1.0),
        ({"text": "abcdefghija"}, "too many characters per second", 5.5, 5.0),
        ({"text": "ab!"}, "out of vocabulary", "outside of the vocabulary: '!'", None),
        ({"text": "aaaaaaaaaa", "duration_s": 2.0}, None, None, None),
        ({"text": "aabb", "duration_s": 0.85}, None, None, None),
    ],
)
def test_each_rule(changes: dict[str, Any], reason: str | None, value: Any, limit: Any) -> None:
    utterance = replace(GOOD, id="x", **changes)
    index, rejections = build(GOOD, utterance, filters=FILTERS)
    expected = [Rejected("x", "/a/good.wav", reason, "filter", value, limit)] if reason else []
    assert rejections.entries == expected
    assert len(index) == 1 + (reason is None)


def test_empty_text_is_dropped_where_labels_are_needed() -> None:
    silent = replace(GOOD, text="")
    index, rejections = build(silent)
    assert [entry.reason for entry in rejections.entries] == ["empty text"]
    assert (len(index), len(index.utterances), index.num_labels().tolist()) == (0, 0, [])
    index, rejections = build(silent, replace(GOOD, text="!!"), tokenizer=None, filters=Filters.none())
    assert not rejections.entries
    assert index.num_labels().tolist() == [0, 0]
    assert index.utterances[1].text == "!!"


@pytest.mark.parametrize(("max_speed", "kept"), [(1.0, [0, 1]), (1.25, [0])])
def test_what_has_fewer_frames_than_its_labels_need_is_dropped(max_speed: float, kept: list[int]) -> None:
    # abba: 4 labels and 1 repeat need 5 frames of 10 samples; aaa needs 5, ab needs 2.
    utterances = [
        replace(GOOD, id="0", duration_s=0.7),
        replace(GOOD, id="1", duration_s=0.5, text="aaa"),
        replace(GOOD, id="2", duration_s=0.49, text="abba"),
    ]
    index, rejections = build(*utterances, max_speed=max_speed, filters=Filters.none())
    assert [int(name) for name in ids(index)] == kept
    assert index.labels_of(len(kept) - 1).tolist() == LETTERS.encode(utterances[kept[-1]].text)
    last = rejections.entries[-1]
    assert (last.id, last.reason) == ("2", "fewer frames than its labels need")
    assert (last.value, last.limit) == (int(49 / max_speed) // 10, 5)


def test_dropped_records_are_counted_with_their_hours() -> None:
    _, rejections = build(*[replace(GOOD, duration_s=3600.0)] * 3, replace(GOOD, text="?"))
    assert list(rejections.utterances.values()) == [3, 1]
    assert rejections.hours["too long"] == 3
    assert rejections.lines() == ["3 too long (3.00 h)", "1 out of vocabulary (0.00 h)"]


def test_repeats_by_counting_pairs() -> None:
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, 2, n) for n in (0, 1, 5, 0, 0, 9, 2, 0)]
    labels = Ragged(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))
    expected = [sum(a == b for a, b in pairwise(row)) for row in rows]
    assert repeats(labels).tolist() == expected
    assert repeats(Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64))).tolist() == []


def test_many_labels_need_a_wider_type() -> None:
    index, _ = build(replace(GOOD, labels=(3, 70000)), given_labels=True)
    assert index.labels_of(0).tolist() == [3, 70000]


def test_labels_of_a_manifest_count_where_the_tokenizer_is_theirs() -> None:
    both, ids_alone = replace(GOOD, labels=(1, 2)), replace(GOOD, text="", labels=(3,))
    index, _ = build(both, ids_alone, GOOD, given_labels=True)
    assert [index.labels_of(row).tolist() for row in range(3)] == [[1, 2], [3], [0, 1, 1, 0]]
    index, rejections = build(both, ids_alone, GOOD)
    assert [index.labels_of(row).tolist() for row in range(2)] == [[0, 1, 1, 0]] * 2
    assert [(entry.id, entry.reason) for entry in rejections.entries] == [("good", "token ids without a text")]


def test_ready_features_are_counted_in_frames_and_never_mixed_with_audio() -> None:
    ready = replace(GOOD, num_frames=7, num_values=80, duration_s=0.7)
    index, _ = build(ready, replace(ready, num_frames=9), scale=FRAMES, output_length=lambda n: n)
    assert index.lengths.tolist() == [7, 9]
    narrow = replace(ready, id="x", num_values=40, duration_s=99.0)
    index, rejections = build(ready, narrow, scale=FRAMES, output_length=lambda n: n)
    assert [(entry.id, entry.reason, entry.value, entry.limit) for entry in rejections.entries] == [
        ("x", "feature dim", 40, 80)
    ]
    assert ids(index) == ["good"]
    with pytest.raises(UserError, match="utterance good has feature dim 40, expected 80"):
        build(replace(ready, num_values=40), scale=FRAMES)
    for scale, utterances in ((FRAMES, (ready, GOOD)), (SCALE, (GOOD, ready))):
        with pytest.raises(UserError, match="a run trains on one of the two"):
            build(*utterances, scale=scale)


def test_labels_are_kept_beside_the_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = tmp_path / "a.jsonl"
    rows = [{"audio_path": f"{i}.flac", "text": "ab?c"[: i + 1], "duration": 2.0} for i in range(30)]
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, rejections = build_kept(manifest, tmp_path)
    monkeypatch.setattr(CharacterTokenizer, "encode", lambda self, text: pytest.fail("encoded again"))
    second, again = build_kept(manifest, tmp_path)
    assert second.fingerprint() == first.fingerprint()
    assert again.entries == rejections.entries
    assert len(again.entries) == 28
    assert [second.labels_of(row).tolist() for row in range(2)] == [[0], [0, 1]]


def build_kept(manifest: Path, folder: Path) -> Any:
    utterances = read_utterances([manifest], cache=str(folder / "cache"))
    return build_index(utterances, scale=SCALE, tokenizer=LETTERS)


def test_durations_in_milliseconds_are_dropped_even_without_filters() -> None:
    index, rejections = build(
        GOOD, replace(GOOD, duration_s=90_000.0), replace(GOOD, duration_s=1e12), filters=Filters.none()
    )
    assert (len(index), rejections.utterances) == (1, {"too long": 2})
    with pytest.raises(ValueError, match="expected at most a day"):
        Filters(max_duration_s=1e6)


@pytest.mark.parametrize(
    "options", [{"min_duration_s": 5.0, "max_duration_s": 5.0}, {"min_chars_per_s": -1.0}, {"max_duration_s": math.nan}]
)
def test_impossible_filters_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected 0 ≤ min < max"):
        Filters(**options)
