"""Settings of a CTC decoding, and the transcripts of greedy and beam search for the same output."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece as trainer

from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError
from asr_jax.core.frame_times import FrameTimes
from asr_jax.metrics.confidence import Calibration
from asr_jax.search.ctc import CTCDecoding
from asr_jax.search.ctc_greedy import greedy_search
from asr_jax.search.hypotheses import Search
from asr_jax.search.rerank import Reranking
from asr_jax.search.word_scores import Fusion
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.mixed import MixedTokenizer
from asr_jax.text.tokenizers import TokenizerSettings, given_tokenizer
from asr_jax.transcripts.transcript import Transcript, Word, joined, to_json
from asr_jax.transcripts.words import Writer
from tests.support import approx

TOKENIZER = CharacterTokenizer(symbols=(" ", "a", "b", None), normaliser="none")
TIMES = FrameTimes(640, 0.0, 16000)


def log_probs_of(path, *, sure=0.97):
    """Log-probabilities with `sure` for each frame's symbol; the other symbols share the rest."""
    probabilities = np.full((len(path), 4), (1 - sure) / 3)
    probabilities[np.arange(len(path)), path] = sure
    return np.log(probabilities).astype(np.float32)


def found_by(kind, values, lengths, tokenizer=TOKENIZER):
    """The n-best lists of all rows. Batches of the same shape share a program."""
    values, lengths = jnp.asarray(values), jnp.asarray(lengths)
    if kind == "greedy":
        found = jax.device_get(greedy_search(values, lengths, blank_id=tokenizer.blank_id))
    else:
        stage = CTCDecoding(kind=kind, search=Search(beam_width=4)).host_stage(tokenizer)
        found = stage(Frames(values, lengths), range(len(values)))
    return [found.sequences(row) for row in range(len(values))]


@pytest.mark.parametrize("kind", ["greedy", "beam"])
def test_words_have_times_and_confidence(kind):
    path = [3, 1, 1, 3, 1, 0, 3, 2, 2, 3]
    _, found = found_by(kind, np.stack([log_probs_of([3] * 10), log_probs_of(path)]), [10, 9])
    writer = Writer(TOKENIZER, times=TIMES)
    transcript = writer.transcript(found, lists_n_best=kind == "beam")
    assert transcript.text == "aa b"
    assert [(word.start_s, word.end_s) for word in transcript.words] == [
        (approx(0.04), approx(0.20)),
        (approx(0.28), approx(0.36)),
    ]
    assert [word.confidence for word in transcript.words] == approx([0.97, 0.97], rel=1e-5)
    assert Writer(TOKENIZER, times=TIMES, calibration=Calibration(offset=-1.0)).transcript(found).confidence < 0.95
    if kind == "beam":
        assert transcript.n_best[0].text == transcript.text
        assert len(transcript.n_best) > 1
    else:
        assert transcript.score == approx(9 * np.log(0.97), rel=1e-4)


def test_what_only_a_beam_search_uses_is_refused_for_greedy():
    with pytest.raises(ValueError, match="kind is 'greedy' and fusion is set: expected kind 'beam'"):
        CTCDecoding(fusion=Fusion(hot_words=("anna",)))
    with pytest.raises(ValueError, match="reranking is set"):
        CTCDecoding(reranking=Reranking(kenlm="lm.arpa"))


def test_words_that_cannot_be_spelt_are_refused_or_named(tmp_path, capsys):
    def build(**fusion):
        return CTCDecoding(kind="beam", fusion=Fusion(**fusion)).host_stage(TOKENIZER)

    with pytest.raises(UserError, match=r"hot words .* cannot spell: ANNA; .*normalised by none"):
        build(hot_words=("ANNA", "ab"))
    lexicon = tmp_path / "words.txt"
    lexicon.write_text("AB\nBA\n")
    with pytest.raises(UserError, match=r"words.txt is a file, which is not read: expected the words themselves"):
        build(hot_words=(str(lexicon),))
    with pytest.raises(UserError, match="2 of 2 words of the lexicon cannot be spelt"):
        build(lexicon=str(lexicon))
    lexicon.write_text("ab\nBA\n")
    build(lexicon=str(lexicon))
    assert "1 of 2 words of the lexicon cannot be spelt by the vocabulary: BA" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["fusion", "reranking"])
def test_a_language_model_whose_words_cannot_be_written_is_refused(kind, tmp_path, capsys):
    pytest.importorskip("kenlm", reason="takes kenlm: pip install 'asr-jax[lm]'")
    path, tokenizer = tmp_path / "lm.arpa", CharacterTokenizer(symbols=(" ", "a", "b", None), normaliser="lower.v1")

    def build(*words):
        grams = "".join(f"-1\t{word}\t0\n" for word in ("<unk>", "<s>", "</s>", *words))
        pairs = f"\\2-grams:\n-1\t<s> {words[0]}\n"
        path.write_text(f"\\data\\\nngram 1={3 + len(words)}\nngram 2=1\n\n\\1-grams:\n{grams}\n{pairs}\n\\end\\\n")
        given = {"fusion": Fusion(kenlm=str(path))} if kind == "fusion" else {"reranking": Reranking(kenlm=str(path))}
        CTCDecoding(kind="beam", **given).host_stage(tokenizer)
        return capsys.readouterr().err

    with pytest.raises(UserError, match=r"0 of 3 words of .*lm.arpa can be written by .* lower.v1; .* A, AB, c: train"):
        build("AB", "A", "c")
    assert "warning: 1 of 2 words of" in build("AB", "ab")
    assert build("ab", "ba") == ""


def test_settings_that_would_do_nothing_are_refused():
    with pytest.raises(ValueError, match="expected one of them"):
        CTCDecoding(kind="beam", fusion=Fusion(hot_words=("a",)), reranking=Reranking(kenlm="lm.arpa"))
    with pytest.raises(ValueError, match=r"fusion\.unit is 'labels'"):
        CTCDecoding(kind="beam", fusion=Fusion(kenlm="lm.arpa", unit="labels"))


def test_boundaries_that_depend_on_two_labels_are_refused_with_fusion():
    tokenizer = MixedTokenizer((None, "hel@@", "lo", "world"), "none")
    assert CTCDecoding(kind="beam").host_stage(tokenizer)
    with pytest.raises(UserError, match=r"depend on two labels, .* fusion or re-ranking: leave them out"):
        CTCDecoding(kind="beam", fusion=Fusion(hot_words=("hello",))).host_stage(tokenizer)
    without_parts = MixedTokenizer((None, "hello", "你", "好", "2"), "none")
    stage = CTCDecoding(kind="beam", fusion=Fusion(hot_words=("你好", "好hello"))).host_stage(without_parts)
    assert stage.scores.units(["hello你好2"], stage.spelling, ()) == ["hello", "你好", "2"]
    with pytest.raises(UserError, match="hot words that the vocabulary cannot spell: 你hell"):
        CTCDecoding(kind="beam", fusion=Fusion(hot_words=("你hell",))).host_stage(without_parts)


def test_labels_of_several_words_are_refused_with_a_language_model(tmp_path):
    pytest.importorskip("kenlm", reason="takes kenlm: pip install 'asr-jax[lm]'")
    (tmp_path / "lm.arpa").write_text(
        "\\data\\\nngram 1=4\nngram 2=1\n\n\\1-grams:\n-3\t<unk>\n-99\t<s>\t0\n-1\t</s>\n-2\t今\t0\n\n"
        "\\2-grams:\n-1\t<s> 今\n\n\\end\\\n"
    )
    tokenizer = CharacterTokenizer(symbols=("今", "今天", None), normaliser="none")
    fused = CTCDecoding(kind="beam", fusion=Fusion(kenlm=str(tmp_path / "lm.arpa")))
    with pytest.raises(
        UserError, match=r"labels such as 今天 have several letters .* --data.tokenizer.kind characters"
    ):
        fused.host_stage(tokenizer)
    assert fused.host_stage(CharacterTokenizer(symbols=("今", "天", None), normaliser="none"))


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
    (found,) = found_by("greedy", 9.0 * np.eye(tokenizer.vocab_size)[None, path], [len(path)], tokenizer)
    transcript = Writer(tokenizer, times=TIMES).transcript(found)
    assert transcript.text == texts[0]
    assert len(transcript.words) == 3
    with pytest.raises(UserError, match="bytes of characters"):
        CTCDecoding(kind="beam").host_stage(tokenizer)


def test_a_decoding_says_what_it_is():
    assert str(CTCDecoding()) == CTCDecoding().digest() == "greedy"
    some = CTCDecoding(
        kind="beam", search=Search(beam_width=7), fusion=Fusion(kenlm="lm.arpa", hot_words=("anna", "otto"))
    )
    assert str(some) == "beam 7, lm.arpa × 0.5 fused, 2 hot words"
    other = CTCDecoding(kind="beam", search=Search(beam_width=8), fusion=some.fusion)
    assert some.digest() != other.digest()


def test_a_decoding_is_that_of_the_content_of_its_files_and_not_of_their_places(tmp_path):
    def digest(folder):
        return CTCDecoding(kind="beam", fusion=Fusion(lexicon=str(tmp_path / folder / "words.txt"))).digest()

    for folder, content in (("one", "a\nb\n"), ("copy", "a\nb\n"), ("other", "a\nc\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "words.txt").write_text(content)
    assert digest("one") == digest("copy") != digest("other")
    assert digest("none") == digest("no") != digest("one")


def test_transcripts_of_parts_become_one():
    first = Transcript((Word("a", 0.0, 0.5, 0.5),), -1.0)
    second = Transcript((Word("b", 10.25, 10.5, 1.0),), -2.0)
    whole = joined([first, Transcript((), 0.0), second])
    assert (whole.text, whole.score, whole.confidence) == ("a b", -3.0, 0.75)


def test_json_has_numbers_alone():
    assert to_json(Transcript((), float("-inf"))) == {
        "words": [], "score": None, "confidence": None, "n_best": []
    }  # fmt: skip
