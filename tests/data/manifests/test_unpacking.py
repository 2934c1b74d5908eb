"""Unpacked bytes: read from where they were written, in a file that exists only when it is complete."""

from pathlib import Path

import numpy as np
import pytest
from recordings import RATE, noise, write

from asr_jax.data.manifests.unpacking import Unpacked


def test_what_is_put_in_is_read_there(tmp_path: Path) -> None:
    samples, frames = noise(1), np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    content = write(tmp_path / "a.flac", samples).read_bytes()
    with Unpacked(str(tmp_path / "new" / "bytes")) as unpacked:
        audio, features = unpacked.add(content, "a.flac"), unpacked.add_features(frames)
        assert not (tmp_path / "new" / "bytes").exists()
    np.testing.assert_array_equal(audio.audio(rate_hz=RATE), samples)
    np.testing.assert_array_equal(features.features(), frames)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["bytes"]
    assert unpacked.num_bytes == len(content) + frames.nbytes == (tmp_path / "new" / "bytes").stat().st_size


def test_nothing_makes_no_file(tmp_path: Path) -> None:
    with Unpacked(str(tmp_path / "bytes")):
        pass
    assert not list(tmp_path.iterdir())


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), Unpacked(str(path)) as unpacked:
        [unpacked.add(content, "") for content in (b"new", None)]  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["bytes"]


def test_two_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = str(tmp_path / "bytes")
    with Unpacked(path) as first, Unpacked(path) as second:
        for number in range(100):
            first.add(bytes([number]), "")
            second.add(bytes([number]), "")
    assert (tmp_path / "bytes").read_bytes() == bytes(range(100))
