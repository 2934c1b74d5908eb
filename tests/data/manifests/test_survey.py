"""Survey of a corpus: splits by speaker, duplicates, damaged files, strange texts and rates."""

import json
import re

import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.survey import ROLES, hours_by_speaker, survey
from tests.support import assert_within

SENTENCES = [
    "the kettle is on the stove",
    "please open the window",
    "where did the ferry go",
    "nobody knows the answer",
]


def speech(path, number, seconds=1.0, rate_hz=16000):
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(number)
    write_flac(path, (3000 * rng.standard_normal(round(seconds * rate_hz))).astype(np.int16), rate_hz)


def corpus(folder, num=40, speakers=8, **sets):
    """Writes recordings of 1 to 1.39 s with a manifest for each set, or one for all, and returns the lines."""
    lines = []
    for k in range(num):
        speech(folder / "audio" / f"{k}.flac", k, 1 + k / 100)
        text = f"{SENTENCES[k % 4]} {'abcdefgh'[k // 4 % 8] * 3}"
        lines.append({"id": f"u{k}", "audio_path": f"audio/{k}.flac", "text": text, "duration": 1 + k / 100})
        lines[-1] |= {"speaker": f"s{k % speakers}"} if speakers else {}
    for name, rows in (sets or {"all": range(num)}).items():
        write(folder / f"{name}.jsonl", [lines[k] for k in rows])
    return lines


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def surveyed(path, tmp_path, seed=0):
    return survey(str(path), seed=seed, unpack_to=tmp_path)


def kinds(found):
    return {each.kind: each for each in found.findings}


def test_sets_are_split_by_speaker_and_the_same_for_the_same_seed(tmp_path):
    corpus(tmp_path / "a", num=80, speakers=16)
    found, again, other = (surveyed(tmp_path / "a" / "all.jsonl", tmp_path, seed) for seed in (1, 1, 2))
    speakers = {role: {each.speaker for each in found.sets[role]} for role in ROLES}
    assert not speakers["train"] & (speakers["validation"] | speakers["test"])
    assert not speakers["validation"] & speakers["test"]
    assert sum(map(len, found.sets.values())) == 80
    assert all(0 < found.sets[role].hours < 0.2 * found.train.hours for role in ("validation", "test"))
    assert "by speaker" in found.split
    ids = [[list(of.sets[role].ids()) for role in ROLES] for of in (found, again, other)]
    assert ids[0] == ids[1] != ids[2]


def test_few_speakers_share_the_sets_and_copies_do_not(tmp_path):
    lines = corpus(tmp_path / "a", num=40, speakers=2)
    twins = [line | {"id": f"twin{k}", "audio_path": f"audio/twin{k}.flac"} for k, line in enumerate(lines)]
    for k in range(40):
        (tmp_path / "a" / f"audio/twin{k}.flac").write_bytes((tmp_path / "a" / f"audio/{k}.flac").read_bytes())
    write(tmp_path / "a" / "all.jsonl", lines + twins)
    found = surveyed(tmp_path / "a", tmp_path)
    assert "by utterance" in found.split
    assert "speakers_shared" in kinds(found)
    role_of = {name: role for role in ROLES for name in found.sets[role].ids()}
    assert len(role_of) == 80
    assert all(role_of[f"u{k}"] == role_of[f"twin{k}"] for k in range(40))
    assert kinds(found)["same_audio"].number == 40


def test_given_sets_are_kept_and_training_loses_copies_of_the_others(tmp_path):
    lines = corpus(tmp_path / "a", train=range(30), dev=range(30, 40))
    speech(tmp_path / "a/audio/3.flac", 33, 1.33)  # the recording of u33, under another name
    found = surveyed(tmp_path / "a", tmp_path)
    assert found.split == ""
    assert "no_test" in kinds(found)
    assert "other_manifests" not in kinds(found)
    assert len(found.sets["validation"]) == 10
    assert not len(found.sets["test"])
    assert "u3" not in set(found.train.ids())
    assert len(found.train) == 29
    assert "u3 (train) = u33 (validation)" in kinds(found)["same_audio"].examples[0]
    write(tmp_path / "a/dev.jsonl", [lines[k] for k in range(30, 40)] + [lines[5] | {"id": "again"}])
    assert "u5" not in set(surveyed(tmp_path / "a", tmp_path).train.ids())
    assert kinds(found)["speakers_shared"].number == 8


def test_manifests_of_no_set_are_named(tmp_path):
    lines = corpus(tmp_path / "a", train=range(30), dev=range(30, 40))
    write(tmp_path / "a/noisy.jsonl", lines[:5])
    others = kinds(surveyed(tmp_path / "a", tmp_path))["other_manifests"]
    assert others.examples == (str(tmp_path / "a/noisy.jsonl"),)
    assert not others.is_wrong
    assert "other_manifests" not in kinds(surveyed(tmp_path / "a/train.jsonl", tmp_path))


def test_texts_in_another_encoding_are_one_finding(tmp_path):
    folder = tmp_path / "my audio"
    for k in range(6):
        speech(folder / f"{k}.flac", k, 1.0)
        (folder / f"{k}.txt").write_text(f"grüße {'abcdef'[k]}", encoding="latin-1" if k < 2 else "utf-8")
    line = kinds(surveyed(folder, tmp_path))["rejected"].line
    assert line.startswith("utterances that cannot be used (not UTF-8), of 6 in all: 2 (")
    assert f"{folder / '0.txt'}; {folder / '1.txt'})" in line
    assert line.endswith("they are left out; save it as UTF-8; from Latin-1: iconv -f LATIN1 -t UTF-8 IN > OUT")


def test_what_cannot_be_used_is_named_and_left_out(tmp_path):
    lines = corpus(tmp_path / "a")
    audio = tmp_path / "a" / "audio"
    (audio / "0.flac").write_bytes(b"no audio")
    (audio / "1.flac").write_bytes((audio / "1.flac").read_bytes()[:9000])
    (audio / "2.flac").unlink()
    lines[3]["text"], lines[4]["text"], lines[5]["text"] = "", "?!", "long " * 90
    lines[6]["duration"] = 9.0
    speech(audio / "7.flac", 7, 1.07, rate_hz=8000)
    write_flac(audio / "8.flac", np.zeros(17280, np.int16), 16000)
    write(tmp_path / "a" / "all.jsonl", lines)
    found = surveyed(tmp_path / "a", tmp_path)
    used = {name for each in found.sets.values() for name in each.ids()}
    assert {f"u{k}" for k in range(40)} - used == {"u0", "u1", "u2", "u3", "u4"}
    named = kinds(found)
    assert {"rejected", "damaged", "no_text", "no_letters", "fast", "durations", "rates", "quiet"} <= set(named)
    assert re.search(r"utterances that cannot be used \(.*\), of 40 in all: \d", named["rejected"].line)
    assert named["few"].examples == tuple(f"{role} {len(each)}" for role, each in found.sets.items() if len(each) < 20)
    assert "1.flac" in named["damaged"].line
    assert "u5" in named["fast"].line
    assert "u6" in named["durations"].line
    assert "8.flac" in named["quiet"].line
    assert "8,000 Hz" in named["rates"].line
    assert_within(abs(found.rates[8000] - 1 / 35), 1e-9)
    assert not found.is_telephone


def test_folders_are_taken_for_speakers(tmp_path):
    for k in range(60):
        speech(tmp_path / "a" / f"s{k % 12}" / f"{k}.flac", k)
        (tmp_path / "a" / f"s{k % 12}" / f"{k}.txt").write_text(SENTENCES[k % 4])
    found = surveyed(tmp_path / "a", tmp_path)
    folders = {role: {each.id.partition("/")[0] for each in found.sets[role]} for role in ROLES}
    assert not folders["train"] & (folders["test"] | folders["validation"])
    assert kinds(found)["folders"].number == 12
    assert {each.speaker for each in found.train} <= {f"s{k}" for k in range(12)}
    assert len(hours_by_speaker(found.train)) == len(folders["train"])


def test_three_utterances_are_the_least(tmp_path):
    lines = corpus(tmp_path / "a", num=3, speakers=0)
    assert [len(each) for each in surveyed(tmp_path / "a", tmp_path).sets.values()] == [1, 1, 1]
    write(tmp_path / "a" / "all.jsonl", lines[:2])
    with pytest.raises(UserError, match="2 utterances that can be used: expected at least 3"):
        surveyed(tmp_path / "a", tmp_path)
