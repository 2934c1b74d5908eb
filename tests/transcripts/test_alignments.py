"""Times of spoken words from files."""

import json

import pytest

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.metrics.latency import TimedWord
from asr_jax.transcripts.alignments import spoken_words

UTTERANCES = [Utterance("a.flac", "audio/a.flac"), Utterance("b", "audio/b.wav"), Utterance("c", "audio/c.flac")]
WORDS = [TimedWord("one", 0.5, 0.75), TimedWord("two", 1.0, 1.5)]


def test_recordings_are_found_by_their_names_in_ctm_and_by_their_ids_in_json(tmp_path):
    ctm, lines = tmp_path / "times.ctm", tmp_path / "times.jsonl"
    ctm.write_text(";; comment\na 1 0.5 0.25 one 0.9\na 1 1 0.5 two\n\na 2 1 0.5 other\n")
    words = [word._asdict() | {"confidence": 1.0} for word in WORDS]
    lines.write_text("".join(json.dumps({"id": name, "text": "one two", "words": words}) + "\n" for name in "bx"))
    assert spoken_words([ctm, lines], UTTERANCES) == {"a.flac": WORDS, "b": WORDS}
    ctm.write_text("a.flac 1 0.5 0.25 one\na.flac 1 1 0.5 two\n")
    assert spoken_words([ctm], UTTERANCES) == {"a.flac": WORDS}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.ctm", "a 1 0.5 0.25 one\na 1 0.5 one\n", r"a\.ctm:2: 'a 1 0.5 one': expected recording channel start"),
        ("a.ctm", "a 1 0.5 long one\n", r"a\.ctm:1: .*expected recording channel start duration word"),
        ("a.json", '{"id": "a"}\n', r"a\.json:1: .*expected a line of asr_jax\.align"),
        ("a.json", "[1]\n", r"a\.json:1: .*expected a line of asr_jax\.align"),
        ("a.txt", "", r"a\.txt: expected a file of alignments with the ending \.ctm, \.json or \.jsonl"),
        ("a.ctm", "z 1 0.5 0.25 one\n", r"a\.ctm: 1 recording, such as z; expected .*set, such as a\.flac"),
    ],
)
def test_wrong_files(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        spoken_words([tmp_path / name], UTTERANCES)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"a\.ctm cannot be read: No such file"):
        spoken_words([tmp_path / "a.ctm"], UTTERANCES)
