"""Recordings of equal names: a transcript is done for its recording, weights and settings, and not for its name."""

import pytest
from recordings import write

from asr_jax.cli.transcribe import main
from asr_jax.core.errors import UserError
from tests.cli.test_transcribe import printed, run, sound
from tests.support import SHARED

__all__ = ["run"]
SAME_NAME = SHARED / "cases" / "same-name-other-audio"


@pytest.fixture
def days(tmp_path):
    """Two folders with other recordings of the same name and size."""
    for number, day in enumerate(("day1", "day2")):
        write(tmp_path / day / "call.wav", sound(1.1, seed=number))
    return tmp_path


def test_equal_names_are_not_equal_recordings(run, days, capsys):
    out = str(days / "out")
    main([run, str(days / "day1"), "--out", out])
    text = (days / "out/call.txt").read_text()
    with pytest.raises(UserError, match=r"call\.txt is of .*/day1/call\.wav and not of .*/day2/call\.wav; .*--force"):
        main([run, str(days / "day2"), "--out", out])
    assert (days / "out/call.txt").read_text() == text
    with pytest.raises(UserError, match="by precision f32, but this is precision bf16"):
        main([run, str(days / "day1"), "--out", out, "--precision", "bf16"])
    (days / "day1").rename(days / "another folder")
    capsys.readouterr()
    main([run, str(days / "another folder"), "--out", out])
    assert "already in" in printed(capsys)[1]
    (days / "out/call.txt").unlink()
    main([run, str(days / "day2"), "--out", out])
    main([run, str(days / "day2"), "--out", out])
    assert "already in" in printed(capsys)[1]


@pytest.mark.skipif(not SAME_NAME.exists(), reason=f"no {SAME_NAME}: set ASR_JAX_SHARED to its folder")
def test_equal_names_in_the_recordings_of_a_case(run, tmp_path):
    main([run, str(SAME_NAME / "day1"), "--out", str(tmp_path / "out")])
    with pytest.raises(UserError, match=r"call1\.txt is of .*/day1/call1\.flac and not of .*/day2/call1\.flac"):
        main([run, str(SAME_NAME / "day2"), "--out", str(tmp_path / "out")])
