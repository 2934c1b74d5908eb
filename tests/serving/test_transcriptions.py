"""The API of transcriptions: every format, the official client, and the results of `transcribe`."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
from recordings import write, write_av

from asr_jax.transcripts.files import NamedRecording, srt, vtt
from asr_jax.transcripts.transcript import Transcript, Word
from tests.serving.servers import PATH, RATE, code_of, content, recordings, running, sound, transcribed

WORDS = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}


@pytest.fixture(scope="module")
def server():
    with running(max_requests=100, num_lengths=2) as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Recordings of mixed lengths, rates and formats; the last one is longer than the model computes at once."""
    folder = tmp_path_factory.mktemp("audio")
    made = []
    lengths = (0.4, 1.1, 2.0, 5.9, 3.3, 0.75, 4.6, 2.7)
    for number, samples in enumerate(recordings(lengths)):
        kind = ("wav", "flac", "ogg", "mp3")[number % 4]
        made.append(write(folder / f"{number}.{kind}", samples, (RATE, 8000, 44100)[number % 3]))
    made.append(write_av(folder / "phone.m4a", sound(3.0, 11), "aac", RATE))
    made.append(write(folder / "silent.wav", np.zeros(RATE, np.int16)))
    return [*made, write(folder / "long.flac", sound(14.3, 12))]


def same(found, expected, duration_s):
    """Whether an answer with words is the result of `transcribe`: text, words and times."""
    words = [(each["word"], each["start"], each["end"]) for each in found["words"]]
    return (
        words == [(each["text"], each["start_s"], each["end_s"]) for each in expected["words"]]
        and found["duration"] == round(duration_s, 3)
        and bool(words) == bool(found["text"])
    )


def test_results_are_those_of_transcribe(server, files):
    """Requests come together, so that batches have recordings of several lengths."""
    expected = transcribed(*files)
    assert sum(bool(words["words"]) for words, _ in expected) == len(files) - 1
    num_short = sum(duration_s <= 6.0 for words, duration_s in expected if words["words"])
    with ThreadPoolExecutor(12) as pool:
        for _ in range(3):
            with server.held():
                waiting = [pool.submit(server.post, path.read_bytes(), **WORDS) for path in files]
                while len(server.service.device._short) < num_short:
                    time.sleep(0.01)
            answers = [each.result() for each in waiting]
            assert [answer.status_code for answer in answers] == [200] * len(files)
            for answer, (words, duration_s), path in zip(answers, expected, files, strict=True):
                assert same(answer.json(), words, duration_s), path.name
    figures = server.client.get("/metrics").text
    rows, batches = (
        float(re.search(rf"^asr_jax_{name}_total (\S+)", figures, re.MULTILINE)[1]) for name in ("rows", "batches")
    )
    assert rows == 3 * num_short > 1.5 * batches
    assert f'asr_jax_requests_total{{route="{PATH}",status="200"}} {3.0 * len(files)}' in figures


def test_every_format(server, files):
    path = files[3]
    [(expected, duration_s)] = transcribed(path)
    words = tuple(Word(each["text"], each["start_s"], each["end_s"], 1.0) for each in expected["words"])
    named = NamedRecording("", "", duration_s, Transcript(words, 0.0))
    text = named.transcript.text
    found = {form: server.post(path.read_bytes(), response_format=form) for form in ("json", "text", "srt", "vtt")}
    assert found["json"].json() == {"text": text, "usage": {"type": "duration", "seconds": 6}}
    assert found["text"].text == text + "\n"
    assert (found["srt"].text, found["vtt"].text) == (srt(named), vtt(named))
    assert found["vtt"].headers["content-type"].startswith("text/vtt")
    assert server.post(path.read_bytes()).json() == found["json"].json()
    both = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
    verbose = server.post(path.read_bytes(), **both).json()
    assert " ".join(segment["text"] for segment in verbose["segments"]) == text
    assert all(0 <= word["confidence"] <= 1 for word in verbose["words"])
    assert "words" not in server.post(path.read_bytes(), response_format="verbose_json").json()
    assert "segments" not in server.post(path.read_bytes(), **WORDS).json()


def test_events(server, files):
    [(expected, _)] = transcribed(files[3])
    answer = server.post(files[3].read_bytes(), stream="true")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert [each["type"] for each in events] == ["transcript.text.delta", "transcript.text.done"]
    assert events[0]["delta"] == events[1]["text"] == " ".join(word["text"] for word in expected["words"])
    assert code_of(server.post(b"no audio", stream="true")) == (400, "invalid_audio")
    assert server.service.num_open == 0


def test_an_error_of_the_server_during_events(server, monkeypatch, capfd):
    monkeypatch.setattr("asr_jax.serving.routes.events", lambda found: 1 / 0)
    answer = server.post(content(sound(0.5, 0)), stream="true").text
    assert json.loads(answer.removeprefix("data: "))["error"]["code"] == "internal_error"
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_files_that_cannot_be_used(server, capfd):
    """The messages have advice for who sends a file, and wrong forms are not in the log."""
    no_audio, cut = server.post(b"no audio"), server.post(content(sound(0.5, 0))[:8000])
    assert code_of(no_audio) == code_of(cut) == (400, "invalid_audio")
    assert "not audio in a known format: send FLAC, WAV, " in no_audio.json()["error"]["message"]
    assert re.search(r"incomplete or damaged \(truncated: .*\): send it again", cut.json()["error"]["message"])
    headers = {"Content-Type": "multipart/form-data; boundary=xx"}
    began = time.monotonic()
    assert server.client.post(PATH, content=b"--yy\r\n", headers=headers).status_code == 400
    assert time.monotonic() - began < 3  # it does not wait for more of the body
    assert not capfd.readouterr().err


def test_the_official_client(server, files):
    client = openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0)
    [(expected, duration_s)] = transcribed(files[3])
    text = " ".join(word["text"] for word in expected["words"])
    with client, files[3].open("rb") as file:
        create = client.audio.transcriptions.create
        assert [each.id for each in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"
        assert create(file=file, model="tiny").text == text
        file.seek(0)
        assert create(file=file, model="tiny", response_format="srt").startswith("1\n00:00:00")
        file.seek(0)
        granularities = ["word", "segment"]
        verbose = create(file=file, model="tiny", response_format="verbose_json", timestamp_granularities=granularities)
        assert [(each.word, each.start) for each in verbose.words] == [
            (each["text"], each["start_s"]) for each in expected["words"]
        ]
        assert (verbose.segments[0].start, verbose.duration) == (expected["words"][0]["start_s"], round(duration_s, 3))
        file.seek(0)
        events = list(create(file=file, model="tiny", stream=True))
        assert (events[0].delta, events[-1].text) == (text, text)
        with pytest.raises(openai.NotFoundError, match="whisper-1"):
            create(file=b"", model="whisper-1")
        with pytest.raises(openai.BadRequestError, match="not audio") as error:
            create(file=b"no audio", model="tiny")
        assert (error.value.param, error.value.code) == ("file", "invalid_audio")


REFUSED = {
    "model": ({"model": "whisper-1"}, 404, "model_not_found"),
    "language": ({"language": "de"}, 400, "unsupported_value"),
    "prompt": ({"prompt": "Names: Anna"}, 400, "unsupported_value"),
    "temperature": ({"temperature": "0.3"}, 400, "unsupported_value"),
    "no number": ({"temperature": "hot"}, 400, "unsupported_value"),
    "format": ({"response_format": "diarized_json"}, 400, "unsupported_value"),
    "granularity": (WORDS | {"timestamp_granularities[]": "frame"}, 400, "unsupported_value"),
    "granularity of json": ({"timestamp_granularities[]": "word"}, 400, "invalid_value"),
    "events": ({"stream": "true", "response_format": "srt"}, 400, "unsupported_value"),
    "stream": ({"stream": "perhaps"}, 400, "unsupported_value"),
    "chunks": ({"chunking_strategy": "server_vad"}, 400, "unsupported_value"),
    "unknown": ({"temprature": "0"}, 400, "unknown_parameter"),
    "twice": ({"language": ["en", "de"]}, 400, "invalid_value"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_fields_that_cannot_be_honoured(server, name):
    fields, status, code = REFUSED[name]
    answer = server.post(content(sound(0.5, 0)), **fields)
    assert code_of(answer) == (status, code)
    assert answer.json()["error"]["param"].rstrip("[]") in {key.rstrip("[]") for key in fields}


def test_forms_without_a_file_or_a_model(server):
    assert code_of(server.client.post(PATH, data={"model": "tiny"})) == (400, "invalid_content_type")
    files = {"other": content(sound(0.5, 0))}
    assert code_of(server.client.post(PATH, data={"model": "tiny"}, files=files))[1] == "missing_required_parameter"
    assert code_of(server.client.post(PATH, files={"file": b"x"}))[1] == "missing_required_parameter"
    assert server.post(content(sound(0.5, 0)), temperature="0", language="", prompt="").status_code == 200


def test_other_paths_and_methods(server):
    unknown, get = server.client.get("/v2"), server.client.get(PATH)
    assert code_of(unknown) == (404, "not_found")
    assert f"there is no /v2: this server has POST {PATH}, " in unknown.json()["error"]["message"]
    assert code_of(get) == (405, "method_not_allowed")
    assert get.headers["allow"] == "POST"
    assert code_of(server.client.get("/v1/models/other")) == (404, "model_not_found")
    assert server.client.get("/health").json() == {"status": "ok"}
    assert server.client.get("/ready").json() == {
        "status": "ready", "model": "tiny", "streams": "model", "needs_token": False,
        "max_bytes": 25_000_000,
    }  # fmt: skip


def test_a_token_and_a_language():
    with running(token="a secret".replace(" ", "-"), language="en", num_streams=0) as server:
        audio = content(sound(0.5, 0))
        for header in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Basic a-secret"}):
            for answer in (
                server.client.post(PATH, files={"file": audio}, data={"model": "tiny"}, headers=header),
                server.client.get("/v1/models", headers=header),
                server.client.get("/metrics", headers=header),
            ):
                assert code_of(answer) == (401, "invalid_api_key")
                assert answer.headers["www-authenticate"] == "Bearer"
        assert server.client.get("/ready").json()["needs_token"]
        client = openai.OpenAI(api_key="a-secret", base_url=f"{server.url}/v1", max_retries=0)
        with client:
            found = client.audio.transcriptions.create(
                file=audio, model="tiny", language="en", response_format="verbose_json"
            )
            assert found.language == "en"
