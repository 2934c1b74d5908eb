"""What a decoding is made of, and the transcripts that both kinds give of the same output."""

import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece as trainer

from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError
from asr_jax.core.frame_times import FrameTimes
from asr_jax.metrics.confidence import Calibration
from asr_jax.search.ctc import Decoding
from asr_jax.search.hypotheses import Search
from asr_jax.search.rerank import Reranking
from asr_jax.search.word_scores import Fusion
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.tokenizers import TokenizerSettings, given_tokenizer
from asr_jax.transcripts.transcript import Transcript, Word, joined, to_json

TOKENIZER = CharacterTokenizer(symbols=(" ", "a", "b", None), normaliser="none")
TIMES = FrameTimes(640, 0.0, 16000)


def log_probs_of(path, *, sure=0.97):
    """`sure` for each frame's symbol, the rest shared by all others."""
    probabilities = np.full((len(path), 4), (1 - sure) / 3)
    probabilities[np.arange(len(path)), path] = sure
    return np.log(probabilities).astype(np.float32)


def decoder_of(kind):
    """Batches of the same shape are searched by one program."""
    return Decoding(kind=kind, search=Search(beam_width=4)).build(TOKENIZER, times=TIMES)


@pytest.mark.parametrize("kind", ["greedy", "beam"])
def test_words_have_times_and_confidence(kind):
    path = [3, 1, 1, 3, 1, 0, 3, 2, 2, 3]
    values = jnp.asarray(np.stack([log_probs_of([3] * 10), log_probs_of(path)]))
    decoder = decoder_of(kind)
    found = decoder.finish(decoder.reduce(Frames(values, jnp.array([10, 9]))), [1])
    transcript = decoder.transcript(found[0], Calibration())
    assert transcript.text == "aa b"
    assert [(word.start_s, word.end_s) for word in transcript.words] == [
        (pytest.approx(0.04), pytest.approx(0.20)),
        (pytest.approx(0.28), pytest.approx(0.36)),
    ]
    later = decoder.transcript(found[0], Calibration(), first_frame=100)
    assert [word.start_s for word in later.words] == pytest.approx([4.04, 4.28])
    assert [word.confidence for word in transcript.words] == pytest.approx([0.97, 0.97], rel=1e-5)
    assert decoder.transcript(found[0], Calibration(offset=-1.0)).confidence < 0.95
    if kind == "beam":
        assert transcript.alternatives[0].text == transcript.text
        assert len(transcript.alternatives) > 1
    else:
        assert transcript.score == pytest.approx(9 * np.log(0.97), rel=1e-4)


def test_what_only_a_beam_search_uses_is_refused_for_greedy():
    with pytest.raises(ValueError, match="kind is 'greedy' and fusion is set: expected kind 'beam'"):
        Decoding(fusion=Fusion(hot_words=("anna",)))
    with pytest.raises(ValueError, match="reranking is set"):
        Decoding(reranking=Reranking(kenlm="lm.arpa"))


def test_words_that_cannot_be_spelt_are_refused_or_named(tmp_path, capsys):
    def build(**fusion):
        return Decoding(kind="beam", fusion=Fusion(**fusion)).build(TOKENIZER, times=TIMES)

    with pytest.raises(UserError, match=r"hot words .* cannot spell: ANNA; .*normalised by none"):
        build(hot_words=("ANNA", "ab"))
    lexicon = tmp_path / "words.txt"
    lexicon.write_text("AB\nBA\n")
    with pytest.raises(UserError, match="2 of 2 words of the lexicon cannot be spelt"):
        build(lexicon=str(lexicon))
    lexicon.write_text("ab\nBA\n")
    build(lexicon=str(lexicon))
    assert "1 of 2 words of the lexicon cannot be spelt by the vocabulary: BA" in capsys.readouterr().err


def test_settings_that_would_do_nothing_are_refused():
    with pytest.raises(ValueError, match="expected one of them"):
        Decoding(kind="beam", fusion=Fusion(hot_words=("a",)), reranking=Reranking(kenlm="lm.arpa"))
    with pytest.raises(ValueError, match=r"fusion\.unit is 'labels'"):
        Decoding(kind="beam", fusion=Fusion(kenlm="lm.arpa", unit="labels"))


def test_bytes_of_characters_are_spelt_together(tmp_path):
    texts = ["zürich müller über"] * 3
    trainer.SentencePieceTrainer.train(
        sentence_iterator=iter(["zurich muller uber"] * 50), model_prefix=str(tmp_path / "m"), vocab_size=270,
        byte_fallback=True, character_coverage=1.0, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    tokenizer = given_tokenizer(
        TokenizerSettings(kind="sentencepiece", path=str(tmp_path / "m.model"), normaliser="none")
    )
    ids = tokenizer.encode(texts[0])
    path = [symbol for label in ids for symbol in (label, tokenizer.blank_id)]
    logps = np.zeros(len(path), np.float32)
    decoder = Decoding().build(tokenizer, times=TIMES)
    (found,) = decoder.finish((np.array([path], np.int32), logps[None]), [0])
    assert found[0].text == texts[0]
    assert len(found[0].words) == 3
    with pytest.raises(UserError, match="bytes of characters"):
        Decoding(kind="beam").build(tokenizer, times=TIMES)


def test_a_decoding_says_what_it_is():
    assert str(Decoding()) == Decoding().digest() == "greedy"
    some = Decoding(
        kind="beam", search=Search(beam_width=7), fusion=Fusion(kenlm="lm.arpa", hot_words=("anna", "otto"))
    )
    assert str(some) == "beam 7, lm.arpa × 0.5 fused, 2 hot words"
    other = Decoding(kind="beam", search=Search(beam_width=8), fusion=some.fusion)
    assert some.digest() != other.digest()


def test_transcripts_of_parts_become_one():
    first = Transcript((Word("a", 0.0, 0.5, 0.5),), -1.0)
    second = Transcript((Word("b", 10.25, 10.5, 1.0),), -2.0)
    whole = joined([first, Transcript((), 0.0), second])
    assert (whole.text, whole.score, whole.confidence) == ("a b", -3.0, 0.75)


def test_json_has_numbers_alone():
    assert to_json(Transcript((), float("-inf"))) == {
        "words": [], "score": None, "confidence": None, "alternatives": []
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["greedy", "beam"])
def test_what_is_no_number_is_told(kind, capsys):
    values = np.stack([log_probs_of([1, 3, 2, *[3] * 7])] * 2)
    values[0] = np.nan
    decoder, lengths = decoder_of(kind), jnp.array([3, 3])
    broken, whole = decoder.finish(decoder.reduce(Frames(jnp.asarray(values), lengths)), [0, 1])
    assert (broken[0].text, whole[0].text) == ("", "ab")
    assert "1 of 2 recordings of a batch have no finite score" in capsys.readouterr().err
    decoder.finish(decoder.reduce(Frames(jnp.asarray(values[[1, 1]]), lengths)), [0, 1])
    assert not capsys.readouterr().err
