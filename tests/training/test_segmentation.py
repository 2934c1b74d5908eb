"""Windows over long audio against the whole at once; words of a text with their labels; energies of frames."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.batch import Batch
from asr_jax.data.buckets import Bucket
from asr_jax.decoding.frame_times import FrameTimes
from asr_jax.decoding.spelling import Spelling
from asr_jax.text.characters import CharacterTokenizer, WordTokenizer
from asr_jax.training.alignment import frame_times
from asr_jax.training.segmentation import frame_energies, text_words, window_log_probs
from tests.training.toy import toy_batch, toy_model


@functools.cache
def heard():
    """A recogniser that hears windows of 25 ms alone, in a program for a batch of any shape."""
    model = toy_model().build(vocab_size=6, blank_id=5, precision="f32")
    variables = jax.jit(functools.partial(model.init, step=None))(jax.random.key(0), toy_batch())
    return model, jax.jit(lambda batch: model.apply(variables, batch, method="emit")["ctc"])


def alone(samples):
    none = jnp.zeros(1, jnp.int32)
    return Batch(samples[None], None, jnp.array([len(samples)]), none[:, None], none, jnp.ones(1), none)


@pytest.mark.parametrize("length", [300, 9601, 40123])
def test_windows_are_the_whole(length):
    model, emit = heard()
    samples = np.random.default_rng(length).integers(-9000, 9000, length).astype(np.int16)
    whole = emit(alone(samples))
    bucket = Bucket(length=9600, num_tokens=8, batch_size=4, longest=9600)
    shift = frame_times(model).shift
    parts = list(window_log_probs(emit, samples, bucket=bucket, shift=shift))
    joined = np.concatenate(parts)
    assert len(joined) == int(whole.lengths[0]) == int(model.output_length(length))
    # Kaldi's frames at the very ends mirror the signal: there windows and the whole are the same, too.
    np.testing.assert_allclose(joined, whole.values[0, : len(joined)], atol=2e-5)
    assert len(parts) == max(-(-(length - 1600) // 6400), 1)


def test_words_keep_their_form_and_labels_their_borders():
    characters = CharacterTokenizer(symbols=(*" ab", None), normaliser="lower.v1")
    words, labels = text_words("Ab b é ba", characters, Spelling.of(characters))
    assert [word.text for word in words] == ["Ab", "b", "é", "ba"]
    assert labels == [1, 2, 0, 2, 0, 2, 1]
    assert [labels[word.first : word.end] for word in words] == [[1, 2], [2], [], [2, 1]]
    assert "'é'" in words[2].problem
    spoken = WordTokenizer(symbols=("one", "two", None), normaliser="lower.v1")
    words, labels = text_words("two One", spoken, Spelling.of(spoken))
    assert labels == [1, 0]
    letters = CharacterTokenizer(symbols=(*" ab", None), normaliser="english_letters.v1")
    words, labels = text_words("Ab, -- b!", letters, Spelling.of(letters))
    assert [word.text for word in words] == ["Ab, --", "b!"]
    assert labels == [1, 2, 0, 2]


def test_energies_of_frames():
    samples = np.repeat(np.array([0, 100, 300, 0], np.int16), 640)
    energies = frame_energies(samples, FrameTimes(640, 0.0, 16000), 5)
    assert energies.tolist() == [0, 1e4, 9e4, 0, 0]
    shifted = frame_energies(samples, FrameTimes(640, -320.0, 16000), 4)
    assert shifted.tolist() == [0, 5e3, 5e4, 4.5e4]
