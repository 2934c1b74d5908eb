"""Folders of transcripts: no recording's file is that of another, whatever they are called."""

import pytest

from asr_jax.decoding.transcript import Transcript, Word
from asr_jax.decoding.transcript_files import Named
from asr_jax.decoding.transcript_outputs import open_output


def named(name):
    return Named(name, name, 1.0, Transcript((Word("w", 0.0, 0.5, 1.0),), -1.0))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["../p/x.wav", "p/x.wav"], ["p/x.wav#2.json", "p/x.wav.json"]),
        (["a.wav", "a.ogg", "a.wav.flac"], ["a.ogg.json", "a.wav.flac.json", "a.wav.json"]),
        (["a.wav", "a.wav.flac"], ["a.json", "a.wav.flac.json"]),
        (["../x", "x", "x#2", "b.wav"], ["b.json", "x#2.json", "x#3.json", "x.json"]),
        (["..", "."], ["_#2.json", "_.json"]),
    ],
)
def test_every_recording_has_a_file_of_its_own(names, expected, tmp_path):
    with open_output("json", tmp_path / "out", names, force=False) as output:
        for name in names:
            assert not output.has(name)
            output.write(named(name))
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.json"))
    assert found == expected
    for name in names:
        assert output.has(name)
