"""Results of earlier starts are found by equal inputs and equal code alone."""

import json
from dataclasses import replace

import numpy as np
from recordings import jsonl, noise, write

from asr_jax.data.batching.index import Index, build_index
from asr_jax.data.batching.overlap import find_overlap
from asr_jax.data.batching.removals import count_removed
from asr_jax.data.batching.round_trip import count_round_trip
from asr_jax.data.manifests import gathering, remembered
from asr_jax.data.manifests.cache import digest_of_code
from asr_jax.data.manifests.reading import read_utterances
from tests.data.batching.test_index import LETTERS, SCALE


def test_by_inputs_and_code(tmp_path, monkeypatch):
    rows, calls = np.arange(remembered.FROM), []

    def result(*inputs, folder=tmp_path):
        return remembered.remembered(folder, "name", inputs, lambda: calls.append(inputs) or len(calls))

    assert [result(rows, 1), result(rows, 1), result(rows + 0, 1)] == [1, 1, 1]
    assert [result(rows, 2), result(rows.astype(np.int32), 1), result(rows[::-1], 1)] == [2, 3, 4]
    assert [result(rows[1:], 1), result(rows[1:], 1)] == [5, 6], "few rows are not kept"
    assert [result(rows, 1, folder=None), result(rows, 1)] == [7, 1]
    path = next(path for path in tmp_path.iterdir() if json.loads(path.read_text())["result"] == 1)
    path.write_text("{")
    assert result(rows, 1) == 8
    monkeypatch.setattr(remembered, "digest_of_code", lambda folders: "other")
    assert result(rows, 1) == 9
    assert digest_of_code(remembered.SOURCES) == digest_of_code(remembered.SOURCES)


def test_results_of_data_are_those_without_memory(tmp_path, monkeypatch):
    texts = ["ab c!", "jab", "x", "aabb", "häb", "abcdefghij abcdefghij"] * 4
    lines = [{"id": str(i), "audio_path": f"/{i}.wav", "text": text, "duration": 2} for i, text in enumerate(texts)]
    manifest, other = jsonl(tmp_path / "a.jsonl", *lines), jsonl(tmp_path / "b.jsonl", *lines[5:20:7])

    def results():
        utterances, validation = (read_utterances([path], cache=str(tmp_path / "cache")) for path in (manifest, other))
        index, _ = build_index(utterances, scale=SCALE, tokenizer=LETTERS)
        bare = replace(LETTERS, normaliser="english_letters.v1")
        removed = count_removed(utterances, bare), count_round_trip(utterances, LETTERS)
        return index.fingerprint(), removed, find_overlap(utterances, validation)

    plain = results()
    assert plain[1][0].parts
    assert plain[1][1].parts
    assert len(plain[2].of_audio) == 3
    monkeypatch.setattr(remembered, "FROM", 1)
    assert results() == plain
    monkeypatch.setattr(Index, "_fingerprint", lambda *given: 1 / 0)
    for module in ("removals._count_removed", "round_trip._count", "overlap._found"):
        monkeypatch.setattr(f"asr_jax.data.batching.{module}", lambda *given, **more: 1 / 0)
    assert results() == plain


def test_blocks_of_any_size_give_the_same_columns(tmp_path, monkeypatch):
    """Locations are relative, durations are missing, and ids are repeated across blocks."""
    lines = [
        {"id": f"u{i % 5}", "audio_path": "a.wav", "text": "ab"[: i % 3], "speaker": f"s{i % 3}"} for i in range(11)
    ]
    lines = [line | ({"duration": 1.0, "tokens": [i]} if i % 2 else {}) for i, line in enumerate(lines)]
    write(tmp_path / "a.wav", noise(0))
    manifest = jsonl(tmp_path / "a.jsonl", *lines)
    digests = set()
    for size in (1, 3, 11, 100):
        monkeypatch.setattr(gathering, "BLOCK", size)
        utterances = read_utterances([manifest], cache=str(tmp_path / f"cache{size}"))
        assert [each.id for each in utterances][:7] == ["u0", "u1", "u2", "u3", "u4", "u0#2", "u1#2"]
        assert utterances[0].location == str(tmp_path / "a.wav")
        digests.add((utterances.digest, tuple(utterances)))
    assert len(digests) == 1
