"""Preparation of strings of digits from synthetic recordings of two sources."""

import json
from collections import Counter

import numpy as np

from asr_jax.audio.io import read_audio, write_flac
from asr_jax.data.manifests.reading import read_utterances
from tests.forked import finished
from tests.support import assert_within


def test_strings_balance_words_and_sources_and_use_training_recordings_alone(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "digits/manifests").mkdir(parents=True)
    for split, speaker in (("train", "a"), ("val", "b"), ("test", "c"), ("connected", "d")):
        rows = []
        for word, source in [("one", "wide")] * 8 + [("one", "narrow"), ("six", "narrow")]:
            path = tmp_path / f"digits/{split}-{len(rows)}.flac"
            write_flac(path, rng.integers(-9000, 9000, 16000).astype(np.int16), 16000)
            row = {"id": path.stem, "audio_path": path.name, "text": word, "duration": 1.0}
            rows.append(row | {"speaker": speaker, "source": source})
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"digits/manifests/{split}.jsonl").write_text(lines)
    command = ["scripts/prepare_digits.py", "--digits", tmp_path / "digits"]
    command += ["--out", tmp_path / "out", "--strings", 60, "--minutes", 0.5]
    for _ in range(2):  # the second time, the synthetic speech exists
        done = finished(*command)
        assert done.returncode == 0, done.stderr
    train = list(read_utterances([tmp_path / "out/manifests/train.jsonl"]))
    joined = [utterance for utterance in train if utterance.source == "joined"]
    assert len(joined) == 60
    words = Counter(word for utterance in joined for word in utterance.text.split())
    assert 0.3 < words["six"] / words.total() < 0.7
    for utterance in joined[:5]:
        seconds = len(read_audio(utterance.location)) / 16000
        assert_within(abs(seconds - utterance.duration_s), 1e-3)
        assert len(utterance.text.split()) <= seconds
    assert {utterance.source for utterance in train} == {"wide", "narrow", "joined", "synthetic"}
    for name, split in (("validation", "val"), ("test", "test"), ("connected", "connected")):
        found = read_utterances([tmp_path / f"out/manifests/{name}.jsonl"])
        assert [utterance.id for utterance in found] == [f"{split}-{row}" for row in range(10)]
