"""Cuts of lhotse as JSON lines: whole recordings, parts, channels, several supervisions; other cuts are named."""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import RATE, check_conversion, check_signals, jsonl, noise, read, write

from asr_jax.core.errors import UserError


def recording(name: str, path: str, seconds: float, channels: tuple[int, ...] = (0,)) -> dict[str, Any]:
    return {
        "id": name, "sources": [{"type": "file", "channels": list(channels), "source": path}], "sampling_rate": RATE,
        "num_samples": round(seconds * RATE), "duration": seconds, "channel_ids": list(channels),
    }  # fmt: skip


def supervision(name: str, start: float, seconds: float, text: str) -> dict[str, Any]:
    return {
        "id": name, "recording_id": "r", "start": start, "duration": seconds, "channel": 0, "text": text,
        "language": "English", "speaker": "s1",
    }  # fmt: skip


def cut(**changes: Any) -> dict[str, Any]:
    """A cut as written by `CutSet.to_file`, with ready features that are not used here."""
    return {
        "id": "c", "start": 0.0, "duration": 2.0, "channel": 0, "supervisions": [supervision("s", 0.0, 2.0, "text")],
        "features": {"type": "kaldi-fbank", "num_frames": 200, "num_features": 80, "storage_path": "feats.lca"},
        "recording": recording("r", "audio/r.wav", 2.0), "type": "MonoCut",
    } | changes  # fmt: skip


def test_whole_recordings_parts_and_several_supervisions(tmp_path: Path) -> None:
    samples = noise(1, 2 * RATE)
    write(tmp_path / "audio" / "r.wav", samples)
    turns = [supervision("s1", 0.0, 0.5, "one"), supervision("s2", 0.75, 0.25, "two")]
    path = tmp_path / "cuts.jsonl.gz"
    cuts = [
        cut(),
        cut(id="part", start=0.5, duration=1.0, supervisions=[supervision("s", 0.1, 0.8, "part")]),
        cut(id="long", start=0.25, duration=1.5, supervisions=turns),
    ]
    path.write_bytes(gzip.compress("".join(json.dumps(item) + "\n" for item in cuts).encode()))
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == ["c", "part", "s1", "s2"]
    assert [utterance.text for utterance in utterances] == ["text", "part", "one", "two"]
    assert {utterance.speaker for utterance in utterances} == {"s1"}
    assert [utterance.duration_s for utterance in utterances] == [2.0, 1.0, 0.5, 0.25]
    check_signals(utterances, [samples, samples[8000:24000], samples[4000:12000], samples[16000:20000]])
    assert utterances[0].location == str(tmp_path / "audio" / "r.wav")
    check_conversion(tmp_path, path)


def test_channels_of_one_file_and_of_several(tmp_path: Path) -> None:
    stereo = np.stack([noise(1, 1600), noise(2, 1600)], axis=1)
    write(tmp_path / "both.wav", stereo)
    write(tmp_path / "left.wav", stereo[:, 0])
    write(tmp_path / "right.wav", stereo[:, 1])
    several = recording("r", "left.wav", 0.1)
    several["sources"].append({"type": "file", "channels": [1], "source": "right.wav"})
    one = recording("r", "both.wav", 0.1, (0, 1))
    resampled = one | {"transforms": [{"name": "Resample", "kwargs": {"source_sampling_rate": 8000}}]}
    cuts = [cut(duration=0.1, channel=1, recording=item) for item in (one, several, resampled)]
    utterances = read(tmp_path, jsonl(tmp_path / "cuts.jsonl", *cuts))
    check_signals(utterances, [stereo[:, 1]] * 3)
    check_conversion(tmp_path, tmp_path / "cuts.jsonl")


PERTURBED = recording("r", "r.wav", 1.8) | {"transforms": [{"name": "Speed", "kwargs": {"factor": 1.1}}]}
IN_MEMORY = {"sources": [{"type": "memory", "channels": [0], "source": "AAAA"}], "duration": 2.0}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"recording": None}, "a MonoCut without a recording"),
        ({"recording": PERTURBED}, "a recording with transforms (Speed)"),
        ({"recording": IN_MEMORY}, 'a recording of type "memory": expected a file'),
        ({"recording": {"sources": "r.wav"}}, '"sources" is "r.wav"; expected a list of objects'),
        ({"channel": 1}, "no source of the recording has channel 1"),
        ({"start": None}, 'without "start" and "duration"'),
        ({"duration": -1.0}, "-1 s from 0 s of its recording"),
        ({"supervisions": []}, '"supervisions" is []'),
        ({"supervisions": [{"id": "a", "text": "a"}] * 2}, 'without "start" and "duration"'),
        ({"supervisions": [supervision("s", -0.5, 1.0, "a")] * 2}, "1 s from -0.5 s of its recording"),
    ],
)
def test_a_broken_cut_is_named_and_the_others_are_read(tmp_path: Path, changes: dict, reason: str) -> None:
    path = jsonl(tmp_path / "m.jsonl", *[cut()] * 10, cut(id="broken", **changes), cut())
    utterances = read(tmp_path, path)
    assert len(utterances) == 11
    (rejected,) = utterances.rejected
    assert (rejected.id, rejected.location) == ("broken", f"{path}:11")
    assert reason in rejected.reason


def test_mixed_cuts_are_named_with_the_fix(tmp_path: Path) -> None:
    mixed = {"id": "mix", "tracks": [{"cut": cut(), "offset": 0.0}], "type": "MixedCut"}
    padding = {"id": "pad", "duration": 1.0, "type": "PaddingCut"}
    utterances = read(tmp_path, jsonl(tmp_path / "m.jsonl", *[cut()] * 10, mixed, padding))
    for entry, kind in zip(utterances.rejected, ("MixedCut", "PaddingCut"), strict=True):
        assert f"a {kind} without a recording: expected cuts of recordings; write the audio" in entry.reason
        assert 'CutSet.from_file("IN.jsonl.gz").save_audios("audio")' in entry.reason


def test_channels_of_multi_cuts(tmp_path: Path) -> None:
    """Each supervision has its channel; all channels of a file are mixed."""
    three = np.stack([noise(seed, 3200) for seed in range(3)], axis=1)
    write(tmp_path / "three.wav", three)
    three_channels = recording("r", "three.wav", 0.2, (0, 1, 2))
    turns = [supervision("a", 0.0, 0.1, "a") | {"channel": 2}, supervision("b", 0.1, 0.1, "b") | {"channel": [0, 1, 2]}]
    multi = cut(duration=0.2, channel=[0, 1, 2], recording=three_channels, supervisions=turns, type="MultiCut")
    some = multi | {"id": "some", "supervisions": [supervision("c", 0.0, 0.2, "c") | {"channel": [0, 1]}]}
    utterances = read(tmp_path, jsonl(tmp_path / "m.jsonl", multi, some))
    check_signals(utterances, [three[:1600, 2], np.rint(three[1600:].mean(axis=1))])
    assert "channels [0, 1] of [0, 1, 2]: expected one channel or all; write the audio" in utterances.rejected[0].reason


def test_marked_cuts_are_left_out(tmp_path: Path) -> None:
    marked = [cut(id=f"c{i}", custom={"_skipme": i % 2}) for i in range(4)]
    utterances = read(tmp_path, jsonl(tmp_path / "m.jsonl", *marked))
    assert [utterance.id for utterance in utterances] == ["c0", "c2"]
    assert not utterances.rejected


def shar(folder: Path, signals: dict[str, np.ndarray | None], suffix: str = ".000000") -> Path:
    """A file of cuts of lhotse's Shar with the tar of its audio. None: the cut has no audio."""
    folder.mkdir(exist_ok=True)
    lines = []
    with tarfile.open(folder / f"recording{suffix}.tar", "w") as tar:
        for name, samples in signals.items():
            members = {f"{name}.nodata": b"", f"{name}.nometa": b""}
            of = None
            if samples is not None:
                of = recording(f"r-{name}", "", len(samples) / RATE)
                of["sources"][0] |= {"type": "shar", "source": ""}
                write(folder / "x.flac", samples)
                members = {f"{name}.flac": (folder / "x.flac").read_bytes(), f"{name}.json": json.dumps(of).encode()}
                (folder / "x.flac").unlink()
            for member, data in members.items():
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            lines.append(
                cut(id=name, duration=0.1, recording=of, supervisions=[supervision("s", 0.0, 0.1, f"of {name}")])
            )
    path = folder / f"cuts{suffix}.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return path


def test_shards_of_shar(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    samples = [noise(seed, 1600) for seed in range(3)]
    shar(tmp_path / "set", {"a": samples[0], "b/c.d": samples[1]})
    path = shar(tmp_path / "set", {"none": None, "e": samples[2]}, ".000001")
    utterances = read(tmp_path, tmp_path / "set")
    assert [(utterance.id, utterance.text) for utterance in utterances] == [
        ("a", "of a"), ("b/c.d", "of b/c.d"), ("e", "of e"),
    ]  # fmt: skip
    assert "a MonoCut without a recording" in utterances.rejected[0].reason
    check_signals(utterances, samples)
    check_conversion(tmp_path, path)
    assert "ignored" not in caplog.text
    with pytest.raises(
        UserError, match=r"a: a recording of lhotse's Shar: its text is in cuts.\*.jsonl.gz beside the tar"
    ):
        read(tmp_path, tmp_path / "set" / "recording.000000.tar")


def test_shards_of_shar_whose_audio_is_missing_or_of_others(tmp_path: Path) -> None:
    path = shar(tmp_path / "set", {"a": noise(0, 1600), "b": noise(1, 1600)})
    other = shar(tmp_path / "set", {"b": noise(1, 1600), "c": noise(0, 1600)}, ".000001")
    other.write_bytes(path.read_bytes())
    utterances = read(tmp_path, other)
    check_signals(utterances, [noise(1, 1600)])
    assert "expected its audio in" in utterances.rejected[0].reason
    assert "recording.000001.tar, as a.wav" in utterances.rejected[0].reason
    (tmp_path / "set" / "recording.000000.tar").unlink()
    with pytest.raises(UserError, match=r"a cut of lhotse's Shar: expected its audio in .*recording.000000.tar"):
        read(tmp_path, path)
