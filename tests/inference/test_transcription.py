"""Recordings of any length: windows have the results of whole recordings, few shapes and constant memory."""

import functools
import json
import tracemalloc
from dataclasses import replace

import jax
import numpy as np
import pytest
from recordings import RATE, write
from safetensors.numpy import load_file
from support import approx, assert_close, assert_within, relative

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.mono import SILENT
from asr_jax.core.batch import Batch
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import data_mesh
from asr_jax.data.batching.limits import BatchLimits
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.heads.ctc import CTC
from asr_jax.inference import long_audio, transcription
from asr_jax.inference.decoder import Decoder
from asr_jax.inference.log_probs import LogProbs
from asr_jax.inference.long_audio import LongAudio
from asr_jax.inference.scored_sets import scored
from asr_jax.inference.trained import WHOLE, Trained
from asr_jax.inference.transcription import Transcriber, recognise_all
from asr_jax.models.base import Model
from asr_jax.models.quartznet import QuartzNet
from asr_jax.nn.quartznet.block import ConvBlock
from asr_jax.search import ctc
from asr_jax.search.ctc import CTCDecoding
from asr_jax.search.ctc_greedy import greedy_search
from asr_jax.search.hypotheses import Hypothesis
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.transcripts.seams import together
from asr_jax.transcripts.state_resets import joined_by_resets
from tests.heads.test_ctc_head import two_heads
from tests.toy_config import experiment

TOKENIZER = CharacterTokenizer(symbols=(" ", *"abcdefg", None), normaliser="none")
LIMITS = BatchLimits(seconds=6.0)
PADDED = 22 * RATE
"""Length to which whole recordings are padded, so that one program computes all of them."""


@pytest.fixture(scope="module")
def module():
    """A convolutional encoder with a finite receptive field."""
    blocks = (
        ConvBlock(16, 5, stride=2, residual="none"),
        ConvBlock(16, 5, residual="none", dilation=2),
        ConvBlock(16, 1, separable=False, residual="none"),
    )
    model = Model(
        encoder=QuartzNet(num_mels=16, blocks=blocks),
        heads={"ctc": CTC()},
        front_end=KaldiFbank(num_mels=16),
        augment=(),
    )
    return model, model.build(vocab_size=TOKENIZER.vocab_size, blank_id=TOKENIZER.blank_id, precision="f32")


@pytest.fixture(scope="module")
def compute(module):
    """Function of variables and samples: log-probabilities of a whole recording at once, and its greedy tokens."""

    @jax.jit
    def computed(variables, batch):
        frames = module[1].apply(variables, batch, method="emit")["ctc"]
        return frames, greedy_search(frames.values, frames.lengths, blank_id=TOKENIZER.blank_id)

    def whole(variables, samples):
        frames, found = jax.device_get(computed(variables, batch_of(samples, PADDED)))
        return frames.values[0, : frames.lengths[0]], found.sequences(0)[0]

    return whole


@pytest.fixture(scope="module")
def trained(module, compute, tmp_path_factory):
    """A run with random weights with which all symbols are found."""
    model, module = module
    init = functools.partial(module.init, jax.random.key(0), method="emit")
    shapes = jax.eval_shape(init, batch_of(np.zeros(16000, np.int16)))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: np.float32(rng.normal(0, 0.5, leaf.shape)), shapes["params"])
    stats = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes["batch_stats"])
    variables = {"params": params, "batch_stats": stats}
    # All letters are equally likely on average, and each is found; blanks and borders are more likely.
    logps, _ = compute(variables, sound(10.0))
    params["heads_ctc"]["output"]["bias"] -= logps.mean(0) - np.float32(4.0) * np.isin(np.arange(9), [0, 8])
    return Trained(
        experiment=replace(experiment(), model=model), model=module, tokenizer=TOKENIZER,
        variables=variables, longest_s=47500 / RATE, limits=LIMITS,
        folder=tmp_path_factory.mktemp("run"), updates=0, weights="live",
        mesh=data_mesh(2),
    )  # fmt: skip


def batch_of(samples, length=None):
    """Returns a batch of one recording, padded to a length."""
    return Batch(
        audio=np.pad(samples, (0, (length or len(samples)) - len(samples)))[None], features=None,
        lengths=np.array([len(samples)], np.int32), tokens=np.zeros((1, 0), np.int32),
        token_lengths=np.zeros(1, np.int32), weights=np.ones(1, np.float32), utterances=np.zeros(1, np.int32),
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole_of(trained, compute):
    """Function that computes the log-probabilities and greedy tokens of a whole recording at once."""
    return functools.partial(compute, trained.variables)


def decoder(trained, **options):
    options = {"decoding": CTCDecoding()} | options
    return Decoder(trained.model, TOKENIZER, mesh=trained.mesh, variables=trained.variables, **options)


@pytest.fixture(scope="module")
def shared(trained):
    """Function that returns a decoder with these options, which all tests share with its compiled programs."""
    return functools.cache(functools.partial(decoder, trained))


def sound(seconds, seed=0):
    """Changing tones with pauses."""
    rng, num = np.random.default_rng(seed), round(seconds * RATE)
    steps = np.repeat(rng.uniform(100, 4000, num // 1600 + 1), 1600)[:num]
    loud = np.repeat(rng.uniform(0, 1, num // 4800 + 1) > 0.3, 4800)[:num]
    samples = 6000 * loud * np.sin(np.cumsum(2 * np.pi * steps / RATE)) + rng.normal(0, 20, num)
    return samples.astype(np.int16)


def utterance(path, number=0):
    import soundfile

    return Utterance(str(number), str(path), "", soundfile.info(path).duration)


def test_windows_give_the_frames_of_the_whole(trained, shared, whole_of, tmp_path):
    """Recordings of several windows, of slightly more than one window, and of less than a frame."""
    sounds = [sound(21.3)[:num] for num in (None, 47501, 300)]
    wholes = [whole_of(samples)[0] for samples in sounds]
    assert len(np.unique(wholes[0].argmax(-1))) >= 5, "the model has the same output for all frames"
    utterances = [utterance(write(tmp_path / f"{n}.flac", samples), n) for n, samples in enumerate(sounds)]
    for window_s, overlap_s in ((0.0, None), (2.5, 0.9)):
        each = LongAudio(trained, shared(gives_log_probs=True), window_s=window_s, overlap_s=overlap_s)
        for number, (_, frames) in enumerate(each.frames(utterances)):
            found, whole = together(frames), wholes[number]
            assert found.logps.shape == whole.shape
            about = f"difference, {len(whole)} frames, windows of {window_s} s"
            assert_within(relative(found.logps, whole), 1e-5, what=about)
            np.testing.assert_array_equal(found.path, whole.argmax(-1))
        assert number == 2


@pytest.mark.slow
@pytest.mark.parametrize(("head", "shift"), [("ctc", 320), ("inter", 160)])
def test_a_head_on_a_tap_of_another_rate_has_frames_and_times_of_its_own(trained, tmp_path, head, shift):
    model, samples = two_heads().build(vocab_size=9, blank_id=8, precision="f32"), sound(7.3)
    init = jax.jit(lambda batch: model.init_with_output(jax.random.key(0), batch, method="emit"))
    emitted, variables = init(batch_of(samples))
    whole = np.asarray(emitted[head].values)[0]
    other = replace(trained, model=model, variables=variables)
    made = decoder(other, head=head, gives_log_probs=True)
    path = write(tmp_path / "a.flac", samples)
    (found,) = [together(frames) for _, frames in LongAudio(other, made).frames([utterance(path)])]
    assert found.logps.shape == whole.shape
    assert_close(found.logps, whole, atol=1e-5)
    assert made.search.writer.times.shift == shift
    assert len(whole) * made.search.writer.times.shift_s == approx(7.3, abs=0.03)
    assert decoder(other).head == "ctc"


@pytest.mark.slow
def test_short_and_long_in_the_order_of_the_inputs_and_in_two_shapes(trained, whole_of, tmp_path):
    lengths = (0.4, 9.1, 2.0, 14.0, 0.9, 0.5)
    paths = [write(tmp_path / f"{n}.flac", sound(seconds, seed=n)) for n, seconds in enumerate(lengths)]
    paths[4].write_bytes(paths[4].read_bytes()[:600])
    utterances = [utterance(path, n) for n, path in enumerate(paths)]
    made, seconds_done = decoder(trained), []
    found = list(Transcriber(trained, made, tell=seconds_done.append)(utterances))
    assert [each.utterance.id for each in found] == list("012345")
    assert [bool(each.transcript) for each in found] == [True, True, True, True, False, True]
    assert found[4].reason
    assert {signal for signal, _ in made.programs.compiled} == {(2, 32800), (2, 48320)}
    assert sum(seconds_done) == approx(sum(each.duration_s for each in utterances), rel=0.1)
    for each in found[1], found[3]:
        _, tokens = whole_of(sound(each.utterance.duration_s, int(each.utterance.id)))
        text = made.search.writer.text(tokens)
        assert each.transcript.text == text
        assert len(text) > 20
        starts = [word.start_s for word in each.transcript.words]
        assert starts == sorted(starts)
        assert each.transcript.words[-1].end_s <= each.utterance.duration_s


def test_an_interruption_costs_a_few_batches_alone(trained, shared, tmp_path, monkeypatch):
    monkeypatch.setattr(transcription, "BATCHES_AT_ONCE", 1)
    path, seconds_done = write(tmp_path / "a.flac", sound(2.0, seed=1)), []
    transcriber = Transcriber(trained, shared(), tell=seconds_done.append)
    most = round(LIMITS.seconds) + 2
    found = transcriber([utterance(path, n) for n in range(2 * most)])
    assert next(found).transcript
    assert 0 < sum(seconds_done) <= most
    assert sum(1 for _ in found) == 2 * most - 1


def test_a_search_over_pieces_finds_what_is_in_the_whole(trained, shared, tmp_path, monkeypatch):
    """A search that returns the best path has the same result for pieces and for the whole recording."""
    path, greedy = write(tmp_path / "a.flac", sound(26.0, seed=3)), shared()
    prepared, shapes = [], []
    search = jax.jit(functools.partial(greedy_search, blank_id=TOKENIZER.blank_id))

    class BestPath:
        def __init__(self, spelling, **options):
            self.spelling = spelling

        def __call__(self, log_probs, lengths):
            (shapes if lengths.any() else prepared).append(log_probs.shape[:2])
            found = jax.device_get(search(log_probs, lengths))
            best = [found.sequences(row)[0] for row in range(len(log_probs))]
            return [
                [Hypothesis((), each.tokens, each.score, 0.0, each.starts, each.ends, each.log_probs)] for each in best
            ]

    monkeypatch.setattr(ctc, "CTCBeamSearch", BestPath)
    beam = decoder(trained, decoding=CTCDecoding(kind="beam"))
    whole, joined = (next(Transcriber(trained, each)([utterance(path)])).transcript for each in (greedy, beam))
    assert len(whole.words) > 20
    assert joined.text == whole.text
    assert [word.start_s for word in joined.words] == approx([word.start_s for word in whole.words])
    assert len(shapes) >= 2
    assert {*shapes} == {*prepared}, "one shape, that of a batch, which is compiled in advance"
    assert len({*prepared}) == 1


def test_a_truncated_recording_is_named_and_the_others_are_transcribed(trained, shared, tmp_path):
    paths = [write(tmp_path / f"{n}.wav", sound(12.0, seed=n)) for n in range(3)]
    utterances = [utterance(path, n) for n, path in enumerate(paths)]
    paths[1].write_bytes(paths[1].read_bytes()[:-90000])
    found = list(Transcriber(trained, shared())(utterances))
    assert [bool(each.transcript) for each in found] == [True, False, True]
    assert "truncated" in found[1].reason


def test_silence_has_no_words_and_a_remark(trained, shared, tmp_path):
    """Short and long recordings; texts of a manifest change nothing here, and reject silence in an evaluation."""
    kinds = [sound(2.0), np.zeros(RATE, np.int16), sound(12.0), np.full(12 * RATE, 900, np.int16)]
    utterances = [utterance(write(tmp_path / f"{n}.wav", samples), n) for n, samples in enumerate(kinds)]
    utterances = [replace(each, text="ab") for each in utterances]
    found = list(Transcriber(trained, shared())(utterances))
    assert [bool(each.transcript and each.transcript.words) for each in found] == [True, False, True, False]
    assert [each.transcript is None for each in found] == [False] * 4
    assert [each.differing.reason if each.differing else "" for each in found] == ["", SILENT, "", SILENT]
    assert [each.utterance.text for each in found] == ["ab"] * 4
    in_set = recognise_all(trained, shared(), trained.plan(Utterances.of(utterances)))
    assert in_set.transcripts.keys() == {0, 2}
    assert [each.reason for each in in_set.rejected] == [f"{SILENT}, but the utterance has a text"] * 2


@pytest.mark.parametrize("form", ["folder", pytest.param("one.safetensors", marks=pytest.mark.slow)])
def test_of_a_set_what_is_much_longer_than_training_is_recognised_by_windows(trained, whole_of, tmp_path, form):
    """No longer shape is compiled, and short recordings have bitwise the same results as in a set of their own."""
    lengths = (14.0, 0.4, 13.0, 9.1, 2.0)
    utterances = [
        utterance(write(tmp_path / f"{n}.flac", sound(seconds, seed=n)), n) for n, seconds in enumerate(lengths)
    ]
    (tmp_path / "2.flac").unlink()
    utterances.append(replace(utterances[0], duration_s=15.0))  # equal ids are allowed if they are not names of tensors
    utterances = utterances[:-1] if form.endswith("safetensors") else utterances
    made = decoder(trained, gives_log_probs=True)

    def recognised(chosen, name):
        written = LogProbs(tmp_path / name, TOKENIZER, frame_s=0.02)
        data = trained.plan(Utterances.of(chosen))
        found = recognise_all(trained, made, data, log_probs=written)
        written.close()
        return data, found, log_probs_in(tmp_path / name)

    data, found, values = recognised(utterances, form)
    assert max(length for (_, length), _ in made.programs.compiled) < WHOLE * 1.5 * 48000
    assert [data.index.utterances[row].id for row in data.windowed_rows] == ["0", "2", "0"][: len(utterances) - 3]
    assert [each.id for each in found.rejected] == ["2"]
    counts = scored(data, found, TOKENIZER)
    assert (counts["utterances"], counts["rejected"]) == (len(utterances) - 1, 1)
    of_short, alone, alone_values = recognised([each for each in utterances if each.duration_s < 12], "alone_" + form)
    assert not of_short.windowed_rows
    for row, transcript in alone.transcripts.items():
        assert found.transcripts[row] == transcript
        name = of_short.index.utterances[row].id
        assert values[name].tobytes() == alone_values[name].tobytes()
    whole, tokens = whole_of(sound(14.0))
    assert_close(values["0"], whole, atol=1e-4)
    text = made.search.writer.text(tokens)
    assert found.transcripts[3].text == text
    assert len(text) > 20


def test_state_resets_join_windows_of_their_sizes(trained, shared, whole_of, tmp_path):
    seconds = (5.7, 2.5, 4.1)
    utterances = [utterance(write(tmp_path / f"{n}.flac", sound(each, n)), n) for n, each in enumerate(seconds)]
    of_resets, made = trained.with_resets((2.5, 0.9)), shared()
    found = list(Transcriber(of_resets, made)(utterances))
    data = of_resets.plan(Utterances.of(utterances))
    ids = list(data.index.utterances.ids())
    assert of_resets.description()["state_resets"] == [2.5, 0.9]
    assert sorted(ids[row] for row in data.windowed_rows) == ["0", "2"]
    in_set = recognise_all(of_resets, made, data).transcripts
    # Windows begin every 1.6 s: ten times the grid of eight frames of 20 ms.
    for number, begins in enumerate(([0, 25600, 51200], [0], [0, 25600])):
        samples, parts = sound(seconds[number], number), []
        for begin in begins:
            whole, tokens = whole_of(samples[begin : begin + 40000])
            parts.append(long_audio._moved(tokens, begin // 320, begin // 320 + len(whole)))
        text = made.search.writer.text(joined_by_resets(parts))
        assert found[number].transcript.text == in_set[ids.index(str(number))].text == text
        assert len(text) > 3
    with pytest.raises(UserError, match=r"decoding beam .* searches in joined frames: expected greedy decoding"):
        Transcriber(of_resets, decoder(trained, decoding=CTCDecoding(kind="beam")))
    with pytest.raises(UserError, match="windows and state resets are given"):
        Transcriber(of_resets, made, window_s=2.0)
    with pytest.raises(UserError, match=r"state_resets is 3 15: expected the length of windows"):
        trained.with_resets((3.0, 15.0))


def log_probs_in(path):
    """Log-probabilities by id."""
    if path.suffix:
        return load_file(path)
    rows = [json.loads(line) for line in (path / "index.jsonl").read_text().splitlines()]
    return {row["id"]: np.load(path / row["file"]) for row in rows}


def test_a_set_of_long_recordings_alone(trained, shared, tmp_path):
    """No utterance is left for batches."""
    data = trained.plan(Utterances.of([utterance(write(tmp_path / "a.flac", sound(14.0)))]))
    found = recognise_all(trained, shared(), data)
    assert len(found.transcripts[0].text) > 20


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length(trained, shared, tmp_path):
    long_audio = LongAudio(trained, shared())
    minute = sound(60.0)

    def peak(minutes):
        path = write(tmp_path / f"{minutes}.flac", np.tile(minute, minutes))
        tracemalloc.start()
        for _, windows in long_audio.emissions([utterance(path)]):
            num = max(window.part.end_frame for window in windows)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert num == trained.model.output_length(minutes * 60 * RATE)
        return most

    peak(1)  # compilation takes memory, too
    few = peak(1)  # the largest number of windows in memory; reading ahead varies by one batch, 0.2 MB
    assert peak(6) - few < 0.04 * 5 * 60 * RATE * 2, "five more minutes of samples need almost no memory"
