"""Locations: conversion to text and back, and their signals, exact to the sample."""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import RATE, noise, write

from asr_jax.audio.io import AudioError, read_audio
from asr_jax.data.manifests.locations import Location

LOCATIONS = {
    "/a/b c.flac": Location("/a/b c.flac"),
    "a.flac#seconds=12.5+3.25": Location("a.flac", start_s=12.5, length_s=3.25),
    "a.flac#seconds=12.5+3.25~": Location("a.flac", start_s=12.5, length_s=3.25, may_overshoot=True),
    "a.flac#seconds=1e-05+1e+16": Location("a.flac", start_s=1e-05, length_s=1e16),
    "a.flac#seconds=0.0+3.0": Location("a.flac", length_s=3.0),
    "a.flac#seconds=2.0+": Location("a.flac", start_s=2.0),
    "a.flac#channel=1": Location("a.flac", channel=1),
    "a.tar#bytes=512+20480&name=b%2Fc%26%23d.wav": Location("a.tar", 512, 20480, "b/c&#d.wav"),
    "x#bytes=0+8&features=1x2.f32": Location("x", 0, 8, shape=(1, 2), form="f32"),
    "x.tar#bytes=1+2&name=a.m4a&channel=0&seconds=0.5+1.0": Location("x.tar", 1, 2, "a.m4a", 0, 0.5, 1.0),
    "/odd #1/take#2.wav": Location("/odd #1/take#2.wav"),
    "#bytes=here": Location("#bytes=here"),
    "a.wav#": Location("a.wav#"),
    "a#b.tar#bytes=1+2": Location("a#b.tar", 1, 2),
    "take#channel=1#seconds=0.0+": Location("take#channel=1"),
    "a#pipe=touch b.wav#seconds=0.0+": Location("a#pipe=touch b.wav"),
    "a#pipe=touch b/c.wav": Location("a#pipe=touch b/c.wav"),
    "a#name=b.wav#channel=0": Location("a#name=b.wav", channel=0),
}


@pytest.mark.parametrize(("text", "location"), LOCATIONS.items())
def test_text_and_back(text: str, location: Location) -> None:
    assert str(location) == text
    assert Location.parse(text) == location
    assert pickle.loads(pickle.dumps(location)) == location


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from([*"#&=+~/.0a|% ", "pipe=", "name=", "bytes=1+2", "seconds=1+", "é"]), min_size=1))
def test_any_path_and_back(parts: list[str]) -> None:
    path = "".join(parts)
    assert Location.parse(str(Location(path))).path == path
    part = Location(path, start_s=1.5, channel=1)
    assert Location.parse(str(part)) == part


def test_relative_paths_are_made_absolute() -> None:
    assert str(Location("b/../c.wav", channel=1).beside("/a")) == "/a/b/../c.wav#channel=1"
    assert Location("/x/c.wav").beside("/a").path == "/x/c.wav"


def test_a_folder_above_is_that_of_a_links_target(tmp_path: Path) -> None:
    """The operating system resolves `link/..` in the folder that the link leads to, and not by the path's text."""
    write(tmp_path / "far" / "a.wav", noise(1, 1600))
    write(tmp_path / "a.wav", noise(2, 1600))
    (tmp_path / "far" / "inner").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "inner")
    audio = Location("link/../a.wav").beside(tmp_path).audio(rate_hz=RATE)
    np.testing.assert_array_equal(audio, noise(1, 1600))


def test_parts_channels_and_bytes_of_audio(tmp_path: Path) -> None:
    stereo = np.stack([noise(1, RATE), noise(2, RATE)], axis=1)
    path = str(write(tmp_path / "a.wav", stereo))
    mean = np.rint(stereo.astype(float).mean(axis=1))
    file = io.BytesIO()
    soundfile.write(file, stereo, RATE, format="FLAC")
    (tmp_path / "pack").write_bytes(b"before" + file.getvalue() + b"after")
    packed = Location(str(tmp_path / "pack"), 6, len(file.getvalue()), "a.flac")
    for location, expected in [
        (Location(path), mean),
        (Location(path, channel=1), stereo[:, 1]),
        (Location(path, start_s=0.25, length_s=0.5), mean[4000:12000]),
        (Location(path, start_s=0.25), mean[4000:]),
        (Location(path, start_s=0.25, length_s=0.5, channel=0), stereo[4000:12000, 0]),
        (packed, mean),
        (Location(packed.path, packed.first_byte, packed.num_bytes, "a.flac", 1, 0.5, 0.25), stereo[8000:12000, 1]),
    ]:
        np.testing.assert_array_equal(location.audio(rate_hz=RATE), expected, err_msg=str(location))
        assert location.info().duration_s == len(expected) / RATE
        assert (location.info().rate_hz, location.info().channels) == (RATE, 2)
    fast = Location(path, channel=1, start_s=0.25, length_s=0.5).audio(rate_hz=8000, speed=1.25)
    assert len(fast) == round(8000 * 0.5 / 1.25)
    slice_alone = write(tmp_path / "slice.wav", stereo[4000:12000, 1])
    np.testing.assert_array_equal(fast, read_audio(slice_alone, rate_hz=8000, speed=1.25))


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("none.wav", "no such file"),
        ("a.wav#bytes=0+999999", "truncated: it has 3244 of 999999 bytes"),
        ("a.wav#bytes=7+100", "not audio"),
        ("a.wav#channel=1", "no channel 1: the file has 1, numbered from 0"),
        ("a.wav#seconds=0.3+0.1", "the file ends before the requested part: it has 0.00 s of the 0.10 s from 0.30 s"),
        ("a.wav#seconds=0.05+0.2", "it has 0.05 s of the 0.20 s from 0.05 s"),
        ("a.wav#seconds=0.2+", "the file ends before the requested part"),
        ("#bytes=0+8", "a directory"),
    ],
)
def test_what_is_not_there_says_why(tmp_path: Path, place: str, reason: str) -> None:
    write(tmp_path / "a.wav", noise(1, 1600))
    with pytest.raises(AudioError) as caught:
        Location.parse(f"{tmp_path}/{place}" if place[0] != "#" else f"{tmp_path}{place}").audio(rate_hz=RATE)
    assert reason in caught.value.reason.replace("Is a", "a")


def test_a_part_that_begins_after_the_end_has_no_duration(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", noise(1, 1600))
    with pytest.raises(AudioError, match=r"ends at 0\.10 s.* 0\.1 s"):
        Location(str(path), start_s=0.1).info()


FRAMES = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def test_features_in_every_form(tmp_path: Path) -> None:
    FRAMES.tofile(tmp_path / "f32")
    np.save(tmp_path / "npy.npy", FRAMES.astype(np.float64))
    np.save(tmp_path / "flat.npy", FRAMES.ravel())
    (tmp_path / "text").write_text("\n".join(", ".join(map(repr, row)) for row in FRAMES.tolist()))
    for name, form in [("f32", "f32"), ("npy.npy", "npy"), ("flat.npy", "npy"), ("text", "text")]:
        values = Location(str(tmp_path / name), shape=(5, 3), form=form).features()
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, FRAMES)


@pytest.mark.parametrize(
    ("name", "form", "reason"),
    [
        ("none", "f32", "no such file"),
        ("odd", "f32", "invalid features (f32): buffer size"),
        ("short", "f32", "3 values; expected 5 frames × 3 = 15"),
        ("turned.npy", "npy", "3 × 5 values; expected 5 frames × 3 = 15"),
        ("empty.npy", "npy", "invalid features (npy)"),
        ("objects.npy", "npy", "invalid features (npy): Object arrays cannot be loaded"),
        ("words", "text", "invalid features (text): could not convert"),
        ("nan", "text", "not finite: 2 values are NaN or infinite"),
        ("words", "mp3", "invalid features (mp3)"),
    ],
)
def test_features_that_are_not_as_described(tmp_path: Path, name: str, form: str, reason: str) -> None:
    (tmp_path / "odd").write_bytes(b"12345")
    FRAMES[:1].tofile(tmp_path / "short")
    np.save(tmp_path / "turned.npy", FRAMES.T)
    (tmp_path / "empty.npy").write_bytes(b"")
    np.save(tmp_path / "objects.npy", np.array([{}] * 15, object), allow_pickle=True)
    (tmp_path / "words").write_text("one two")
    (tmp_path / "nan").write_text("nan inf " + "0 " * 13)
    with pytest.raises(AudioError) as caught:
        Location(str(tmp_path / name), shape=(5, 3), form=form).features()
    assert reason in caught.value.reason
