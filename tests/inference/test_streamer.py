"""Recognition of streams: the results of whole recordings, in any pieces, for many streams in one batch."""

import pickle
import signal
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
import sentencepiece as trainer

from asr_jax.api import Run
from asr_jax.audio.presets import rnnt
from asr_jax.audio.stages import NormaliseByDataSet
from asr_jax.core.errors import UserError
from asr_jax.core.frame_times import FrameTimes
from asr_jax.core.programs import Programs
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.heads.ctc import CTC
from asr_jax.heads.transducer import Transducer
from asr_jax.inference.endpoints import Endpoints
from asr_jax.inference.streaming import StreamProgram, num_settled_characters
from asr_jax.models.base import Model
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.nn.recurrent.prediction import LSTMPrediction
from asr_jax.text.tokenizers import TokenizerSettings, given_tokenizer
from asr_jax.transcripts.words import Writer
from tests.inference.streams import (
    DECODINGS,
    NEVER,
    assert_same,
    pieces,
    recognised,
    recognised_together,
    sound,
    streamer_of,
    trained_of,
    whole,
)
from tests.support import assert_close
from tests.toy_config import experiment

MODEL = Model(
    encoder=LSTMEncoder(num_mels=240, dim=16, layers_before=1, layers_after=1),
    heads={
        "ctc": CTC(),
        "rnnt": Transducer(prediction=LSTMPrediction(8, num_layers=1), joint_dim=12, activation="tanh"),
        "tdt": Transducer(
            prediction=LSTMPrediction(8, num_layers=1), joint_dim=12, activation="tanh", durations=(0, 1, 3)
        ),
    },
    front_end=rnnt(NormaliseByDataSet(mean=(-8.0,) * 80, deviation=(4.0,) * 80)),
    augment=(),
    primary="ctc",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return trained_of(MODEL, tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "rnnt" else pytest.mark.slow) for name in DECODINGS]
)
def test_any_pieces_give_the_transcript_of_the_whole_recording(trained, name):
    streamer = streamer_of(trained, name)
    recordings = [sound(seconds, seed) for seconds, seed in ((5.0, 0), (2.13, 1), (0.02, 2))]
    transcripts = whole(trained, name, recordings)
    for samples, expected in zip(recordings, transcripts, strict=True):
        for number in range(2):
            results = recognised(streamer, pieces(samples, number))
            assert [each.is_final for each in results] == [False] * (len(results) - 1) + [True] * bool(results)
            if not expected.words:
                assert not results
                continue
            assert_same(results[-1].transcript, expected)
            assert [each.text for each in results[-1].transcript.n_best] == [each.text for each in expected.n_best]
            for each in results:
                assert results[-1].transcript.text.startswith(each.transcript.text[: each.num_settled])
    assert len(transcripts[0].tokens) > 10
    assert len(set(transcripts[0].tokens)) > 2
    assert any(each.num_settled for each in recognised(streamer, recordings[:1])[:-1])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "rnnt" else pytest.mark.slow) for name in DECODINGS]
)
def test_streams_of_one_batch_are_as_each_alone(trained, name):
    endpoints = Endpoints(silence_s=0.5, pause_s=0.2, longest_s=2.0)
    audio = [sound(seconds, seed) for seed, seconds in enumerate((4.0, 1.0, 2.5, 3.1, 0.7))]
    one_by_one = streamer_of(trained, name, endpoints=endpoints)
    alone = [recognised(one_by_one, [samples]) for samples in audio]
    together = recognised_together(streamer_of(trained, name, num_rows=3, endpoints=endpoints), audio, num_rows=3)
    for found, expected in zip(together, alone, strict=True):
        assert [each.is_final for each in found] == [each.is_final for each in expected]
        assert sum(each.is_final for each in found) == len([each for each in expected if each.is_final])
        for ours, theirs in zip(found, expected, strict=True):
            assert_same(ours.transcript, theirs.transcript)
    assert sum(each.is_final for each in alone[0]) > 1


def test_memory_does_not_grow_with_a_stream(trained):
    """Endpoints limit the labels that the host keeps; samples are kept only for the next window."""
    streamer = streamer_of(trained, "rnnt", endpoints=Endpoints(longest_s=2.0))
    stream, sizes = streamer.begin(), []
    for number in range(8):
        streamer.feed(stream, sound(3.0, number))
        list(streamer.run())
        sizes.append(len(pickle.dumps((streamer._search, streamer._rows[0].buffer._pieces))))
        assert sum(len(each) for each in streamer._search._windows) <= 2.0 / 0.24 + 1
    assert max(sizes) < 2 * sizes[0]


def test_an_interrupt_loses_nothing(trained, monkeypatch, ctrl_c):
    """Ctrl-C comes within the search of a window, then within the use of a result."""
    endpoints, samples = Endpoints(longest_s=1.2), sound(5.0, 0)
    expected = recognised(streamer_of(trained, "ctc", endpoints=endpoints), [samples])
    streamer, found, calls = streamer_of(trained, "ctc", endpoints=endpoints), [], []
    take = streamer._search.take

    def interrupted(*given):
        calls.append(given)
        if len(calls) == 9:
            signal.raise_signal(signal.SIGINT)
        take(*given)

    monkeypatch.setattr(streamer._search, "take", interrupted)
    stream = streamer.begin()
    streamer.feed(stream, samples)
    with pytest.raises(KeyboardInterrupt):
        found.extend(streamer.run())
    assert len(calls) == 9
    assert found  # results are yielded before the last window is computed
    streamer.end(stream)
    found.append(next(streamer.run()))
    assert [*found, *streamer.run()] == expected


@pytest.mark.parametrize("number", [9, -1])
def test_an_interrupted_call_loses_no_results(trained, monkeypatch, ctrl_c, number):
    """Ctrl-C comes within a window of `feed`, or within the last window, which `finish` computes."""
    endpoints, samples = Endpoints(longest_s=1.2), sound(5.0, 0)
    run, found, calls = Run(trained, head="ctc"), [], []
    stream = run.stream(endpoints=endpoints)
    expected = stream.feed(samples) + stream.finish()
    stream = run.stream(endpoints=endpoints)
    take = stream._streamer._search.take

    def interrupted(*given):
        calls.append(given)
        if len(calls) == number or (number < 0 and stream._streamer._rows[0].buffer.has_ended):
            signal.raise_signal(signal.SIGINT)
        take(*given)

    monkeypatch.setattr(stream._streamer._search, "take", interrupted)
    if number < 0:
        found += stream.feed(samples)
        with pytest.raises(KeyboardInterrupt):
            stream.finish()
    else:
        with pytest.raises(KeyboardInterrupt):
            stream.feed(samples)
        found += stream.feed(samples[:0])
    found += stream.finish()
    assert found == expected
    with pytest.raises(UserError, match="is not open"):
        stream.finish()


def test_streams_of_a_run_share_their_program(trained, monkeypatch):
    """One stream does not change the results of another one at the same time."""
    run, samples = Run(trained, head="ctc"), sound(3.0, 0)
    first = run.stream(endpoints=NEVER)
    monkeypatch.setattr(Programs, "lower", None)
    second = run.stream(endpoints=Endpoints(longest_s=1.2))
    results = first.feed(samples[:20_000]), second.feed(sound(3.0, 1))
    results = results[0] + first.feed(samples[20_000:]) + first.finish(), results[1] + second.finish()
    for found, given, endpoints in zip(
        results, (samples, sound(3.0, 1)), (NEVER, Endpoints(longest_s=1.2)), strict=True
    ):
        stream = run.stream(endpoints=endpoints)
        assert found == stream.feed(given) + stream.finish()
    assert [sum(each.is_final for each in found) > 1 for found in results] == [False, True]


def test_a_window_does_not_copy_variables(trained):
    program = StreamProgram(trained, trained.decoder(DECODINGS["rnnt beam"], head="rnnt"))
    given = np.zeros((1, program.windows.num_samples), np.int16), np.zeros((2, 1), np.int32), np.ones((2, 1), bool)
    _, found, _ = program(program.state(), *given)
    assert [each.shape[:1] for each in jax.tree.leaves(found)] == [(1,), (1,)]
    assert jax.tree.leaves(found)[1] is found.lengths
    kept, again = (program.search().variables["params"] for _ in range(2))
    assert kept["output"]["kernel"] is again["output"]["kernel"]
    assert_close(kept["output"]["kernel"], trained.variables["params"]["heads_rnnt"]["output"]["kernel"], atol=0)


def test_a_backlog_does_not_delay_other_streams(trained):
    streamer = streamer_of(trained, "ctc", num_rows=2)
    for seconds in (5.0, 2.0):
        streamer.feed(stream := streamer.begin(), sound(seconds, 0))
        streamer.end(stream)
    results = list(streamer.run())
    [of_short] = [place for place, each in enumerate(results) if each.is_final and each.stream == 1]
    assert any(each.stream == 0 for each in results[:of_short])
    assert any(each.stream == 0 and not each.is_final for each in results[of_short:])


def test_times_after_an_endpoint_are_those_of_the_stream(trained):
    streamer = streamer_of(trained, "ctc", endpoints=Endpoints(silence_s=0.0, pause_s=0.0, longest_s=1.2))
    samples = sound(5.0, 0)
    finals = [each.transcript for each in recognised(streamer, [samples]) if each.is_final]
    assert len(finals) == 4
    utterances = []
    for each in finals:
        times = [(round(1000 * word.start_s), round(1000 * word.end_s)) for word in each.words]
        utterances.append((times[0][0] + 25) // 1200)  # the first frame begins 25 ms before the stream
        assert all(start < end <= 1200 * (utterances[-1] + 1) - 25 for start, end in times)
    assert utterances == [0, 1, 3, 4]  # the other one has no text


def test_the_settled_text_has_no_incomplete_character(tmp_path):
    trainer.SentencePieceTrainer.train(
        sentence_iterator=iter(["zurich muller uber"] * 50), model_prefix=str(tmp_path / "m"), vocab_size=270,
        byte_fallback=True, character_coverage=1.0, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    settings = TokenizerSettings(kind="sentencepiece", path=str(tmp_path / "m.model"), normaliser="none")
    tokenizer = given_tokenizer(settings)
    writer, whole = Writer(tokenizer, times=FrameTimes(640, 0.0, 16000)), "zürich 語 müller"
    tokens, texts = list(tokenizer.encode(whole)), []
    for num in range(1, len(tokens) + 1):
        times = tuple(range(num))
        texts.append(writer.text(TokenSequence(tuple(tokens[:num]), times, times, (0.0,) * num, 0.0)))
        assert whole.startswith(texts[-1][: num_settled_characters(texts[-1], texts[-1])])
    assert any("\ufffd" in each for each in texts)
    assert num_settled_characters(whole, whole) == len(whole)


@pytest.mark.parametrize(
    ("has_text", "silence_s", "duration_s", "expected"),
    [
        (False, 2.3, 2.3, False), (False, 2.4, 2.4, True), (True, 1.1, 9.0, False), (True, 1.2, 3.0, True),
        (True, 0.0, 19.9, False), (True, 0.0, 20.0, True), (False, 0.0, 20.0, True),
    ],
)  # fmt: skip
def test_rules(has_text, silence_s, duration_s, expected):
    assert Endpoints().reached(has_text=has_text, silence_s=silence_s, duration_s=duration_s) == expected
    assert not NEVER.reached(has_text=has_text, silence_s=silence_s, duration_s=duration_s)


def test_what_cannot_stream_is_refused(trained):
    streamer = streamer_of(trained, "ctc")
    streamer.begin()
    with pytest.raises(UserError, match="1 streams are open"):
        streamer.begin()
    for given, form in ((np.zeros(3), r"\(3,\) and type float64"), (np.zeros((), np.int16), r"\(\) and type int16")):
        with pytest.raises(UserError, match=f"samples have shape {form}: expected an array with one axis of int16"):
            streamer.feed(0, given)
    streamer.end(0)
    for stream in (0, 7):
        for call in (partial(streamer.feed, samples=np.zeros(3, np.int16)), streamer.end):
            with pytest.raises(UserError, match=f"stream {stream} is not open, or has ended"):
                call(stream)
    by_utterance = replace(MODEL, front_end=rnnt())
    module = by_utterance.build(vocab_size=9, blank_id=8, precision="f32")
    with pytest.raises(UserError, match="the front-end has Normalise"):
        streamer_of(replace(trained, model=module), "ctc")
    toy = experiment().model.build(vocab_size=9, blank_id=8, precision="f32")
    with pytest.raises(UserError, match="Toy cannot stream, because its outputs depend on the whole recording"):
        streamer_of(replace(trained, model=toy), "ctc")
