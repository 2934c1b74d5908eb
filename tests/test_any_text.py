"""Any Unicode text: the readers of this package read what its writers have written, or it is refused and named."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asr_jax.cli.evaluate import write_predictions
from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.names import one_line
from asr_jax.core.text_files import json_line, read_lines, split_lines
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.fairseq import read_fairseq, write_fairseq
from asr_jax.data.manifests.readers.json_lines import read_json
from asr_jax.data.manifests.texts import texts_of
from asr_jax.data.manifests.unpacking import Unpacked
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.observe.events import EventLog, read_events
from asr_jax.reporting.predictions import read_predictions
from asr_jax.training.run import RejectedFile
from asr_jax.transcripts.files import NamedRecording
from asr_jax.transcripts.outputs import open_output
from asr_jax.transcripts.transcript import Transcript, Word

pytestmark = pytest.mark.slow

SEPARATORS = '\t\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\xa0\u3000\u200b\ufeff\0"\\|,#\udcff\ud800\U0001f600'
TEXT = st.text(st.one_of(st.sampled_from(SEPARATORS), st.characters()), max_size=12)
TEXTS = st.lists(TEXT, min_size=1, max_size=6)
any_text = settings(max_examples=300, deadline=None, database=None)


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def is_utf8(text):
    return text == text.encode(errors="ignore").decode()


@any_text
@given(TEXTS, TEXTS)
def test_manifests(folder, texts, names):
    utterances = [Utterance(f"{n}{names[0]}", f"/a/{n}.wav", text, speaker=names[-1]) for n, text in enumerate(texts)]
    path = folder / "m.jsonl"
    write_manifest(path, utterances)
    with Unpacked(str(folder / "unpacked")) as unpacked:
        found = list(read_json(str(path), ReadOptions(texts_may_lack=True, unpacked=unpacked)))
    assert len(found) == len(utterances)
    for entry, utterance in zip(found, utterances, strict=True):
        if is_utf8(utterance.id + utterance.text + utterance.speaker):
            assert isinstance(entry, Utterance)
            assert (entry.id, entry.text, entry.speaker) == (utterance.id, utterance.text, utterance.speaker)
        else:
            assert isinstance(entry, Rejected)
            assert "unpaired surrogate" in entry.reason


@any_text
@given(TEXTS, TEXT)
def test_lists_of_fairseq(folder, texts, name):
    utterances = [Utterance(str(n), f"/a{name}/{n}.wav", text, 1.0) for n, text in enumerate(texts)]
    path = folder / "s.tsv"
    if set(name) & set("\t\r\n") or "|" in "".join(texts) or not is_utf8("".join((name, *texts))):
        with pytest.raises(UserError, match=r"^utterance "):
            write_fairseq(str(path), utterances)
        return
    write_fairseq(str(path), utterances)
    found = list(read_fairseq(str(path), ReadOptions()))
    assert [entry.text for entry in found] == [" ".join(text.split()) for text in texts]
    assert [entry.location for entry in found] == [utterance.location for utterance in utterances]


@any_text
@given(TEXTS)
def test_predictions(folder, texts):
    lines = [
        {"id": f"{n}{text}", "reference": text, "hypothesis": text, "source": text, "speaker": text, "duration_s": None}
        for n, text in enumerate(texts)
    ]
    write_predictions(folder / "p.jsonl", {texts[0]: {"lines": lines}}, {"head": texts[-1], "decoding": ""})
    found = read_predictions(folder / "p.jsonl").recognised
    for n, (each, text) in enumerate(zip(found, texts, strict=True)):
        assert (each.id, each.reference, each.hypothesis) == (f"{n}{text}", text, text)
        assert (each.source, each.speaker, each.set) == (text, text, texts[0])


@any_text
@given(TEXTS)
def test_rejected_utterances_and_events(folder, texts):
    for name in ("rejected.jsonl", "events.jsonl"):
        (folder / name).unlink(missing_ok=True)
    RejectedFile(folder).append([Rejected(text, text, text, "audio") for text in texts])
    assert RejectedFile(folder).reasons() == {(text, text): text for text in texts}
    with EventLog(folder / "events.jsonl") as log:
        for text in texts:
            log.write("warning", message=text)
    assert [event["data"]["message"] for event in read_events(folder / "events.jsonl")] == texts


@any_text
@given(TEXTS, st.lists(TEXT.map(lambda text: "".join(text.split())).filter(bool), max_size=4))
@pytest.mark.parametrize("form", ["text", "json", "ctm"])
def test_transcripts_of_all_recordings_in_one_file(folder, form, names, words):
    recordings = [Utterance(f"{n}{name}", f"/a/{name}", duration_s=1.0) for n, name in enumerate(names)]
    transcript = Transcript(tuple(Word(word, 0.0, 0.5, 1.0) for word in words), -1.0)
    out = folder / f"all.{form}"
    with open_output(form, out, recordings, force=True, maker=dict, made_of=list) as output:
        for recording in recordings:
            assert output.write(NamedRecording.of(recording, transcript)) == ""
    lines, text = list(read_lines(out)), " ".join(words)
    if form == "json":
        assert [(each["id"], each["text"]) for each in map(json.loads, lines)] == [
            (each.id, text) for each in recordings
        ]
    elif form == "text":
        pairs = [line.split("\t") for line in lines]
        shown = text.encode(errors="backslashreplace").decode()
        assert pairs == [[one_line(each.location), shown] for each in recordings]
    else:
        assert [len(line.split()) for line in lines] == [6] * len(words) * len(names)


@any_text
@given(TEXTS)
def test_corpora_of_texts(folder, texts):
    texts = [" ".join(text.split()).encode(errors="ignore").decode() for text in texts]
    write_whole(folder / "corpus.txt", "".join(f"{text}\n" for text in texts))
    assert list(texts_of([str(folder / "corpus.txt")])) == texts


@any_text
@given(TEXT)
@example("a\rb")
def test_json_is_one_line_for_all_readers(folder, text):
    line = json_line({text: text})
    assert line.splitlines(keepends=True) == [line]
    assert split_lines(line) == [line[:-1]]
    assert json.loads(line) == {text: text}
