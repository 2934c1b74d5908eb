"""Texts that labels write otherwise: they are counted and named, with the lowest error rates and a remedy."""

from dataclasses import replace

import pytest

from asr_jax.data.batching.buckets import Scale
from asr_jax.data.batching.index import build_index
from asr_jax.data.batching.round_trip import (
    RoundTrip,
    about_round_trip,
    count_round_trip,
    fitting_normaliser,
)
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.characters import CharacterTokenizer, IdTokenizer, NoTokenizer, WordTokenizer
from asr_jax.text.mixed import MixedTokenizer
from asr_jax.text.pieces import train_model
from asr_jax.text.sentencepiece import SentencePieceTokenizer

LETTERS = CharacterTokenizer(symbols=(*" 'abcdefghijklmnopqrstuvwxyz", None), normaliser="lower.v1")
TEXTS = ["turn the lights on", "close the window at five thirty", "finish it before half past nine", "jump quickly zoe"]


def pieces(rule: str, *, normaliser: str) -> SentencePieceTokenizer:
    """A SentencePiece tokenizer whose model normalises texts by a rule of SentencePiece."""
    rules = {"normalization_rule_name": rule, "hard_vocab_limit": False}
    model = train_model(TEXTS * 20, vocab_size=60, with_blank=False, **rules)
    return SentencePieceTokenizer.of_model(model, normaliser=normaliser)


FOLDING = pieces("nmt_nfkc_cf", normaliser="none")


def utterances(*texts: str) -> Utterances:
    return Utterances.of(Utterance(f"u{i}", f"/a/{i}.wav", text, 2.0) for i, text in enumerate(texts))


def found(round_trip: RoundTrip) -> dict[tuple[str, str], tuple[int, int, str]]:
    return {(part.part, part.replacement): (part.number, part.texts, part.id) for part in round_trip.parts}


def test_a_model_that_folds_case():
    texts = [text.upper() for text in TEXTS]
    counted = count_round_trip(utterances(*texts, "the window"), FOLDING)
    num_letters = sum(map(str.isupper, "".join(texts)))
    assert found(counted) == {("capital letters", "small letters"): (num_letters, 4, "u0")}
    assert (counted.texts, counted.num_texts) == (4, 5)
    assert counted.wer == 19 / 21  # all words but the two of the last text
    assert counted.normaliser == "lower.v1"
    assert not count_round_trip(utterances(*texts), replace(FOLDING, normaliser="lower.v1")).texts
    assert not count_round_trip(utterances(*texts), FOLDING, scoring="lower.v1").texts


def test_compatible_characters():
    given = utterances("finish ﬁve", "turn Ｏn", "e\u0301 at nine")
    counted = count_round_trip(given, pieces("nmt_nfkc", normaliser="none"))
    assert ("ﬁ", "fi") in found(counted)
    assert ("Ｏ", "O") not in found(counted)  # the model has no capitals
    assert counted.texts == 3


def test_characters_without_a_label():
    counted = count_round_trip(utterances("Turn it on.", "Turn, now.", "turn it on"), LETTERS)
    assert found(counted) == {(".", ""): (2, 2, "u0"), (",", ""): (1, 1, "u1")}
    assert [part.by for part in counted.missing.parts] == ["not in the vocabulary"] * 2
    assert (counted.wer, counted.cer) == (3 / 8, 3 / 31)
    assert counted.normaliser == "english_letters.v1"
    message = about_round_trip(counted, "validation", flag="--data.tokenizer.normaliser", has_rates=True)
    assert message.splitlines() == [
        "2 of 3 validation texts are not what the labels write; even if every label is right, WER is 37.50 % and CER "
        "9.68 %",
        "  '.' (FULL STOP): 2 times in 2 texts, not in the vocabulary; for example in u0: 'Turn it on.'",
        "  ',' (COMMA): 1 time in 1 text, not in the vocabulary; for example in u1: 'Turn, now.'",
        "  --data.tokenizer.normaliser english_letters.v1 ends this: the labels then write all texts that were tried",
    ]
    assert not about_round_trip(count_round_trip(utterances("a"), LETTERS), "training", flag="", has_rates=True)


@pytest.mark.parametrize(
    ("texts", "tokenizer", "expected"),
    [
        (["it is 5 o'clock."], LETTERS, "english.v1"),  # english_letters.v1 would lose the number
        (["über köln"], LETTERS, ""),  # a normaliser that loses letters is no remedy
        (
            ["straße nach köln!"],
            replace(LETTERS, symbols=(*" abcdefghijklmnopqrstuvwxyzäöüß", None)),
            "whisper_basic.v1",
        ),
        (["we (all) laugh."], LETTERS, "english_letters.v1"),  # whisper_basic.v1 removes text in brackets
        (["3 % of it"], LETTERS, "english.v1"),
        (
            ["turn it on."],
            CharacterTokenizer(symbols=(*" ABCDEFGHIJKLMNOPQRSTUVWXYZ", None), normaliser="upper.v1"),
            "english_letters.v1+upper.v1",
        ),
    ],
)
def test_the_normaliser_that_ends_it_loses_nothing_that_is_spoken(texts, tokenizer, expected):
    assert fitting_normaliser([*texts, "a"], tokenizer) == expected


def test_the_normaliser_of_scoring():
    """Rates are of references and hypotheses that pass the normaliser of scoring, whatever that of the tokenizer."""
    given = utterances("It is 5 o'clock.", "turn it on")
    assert count_round_trip(given, LETTERS, scoring="lower.v1").normaliser == "english.v1"
    assert not count_round_trip(given, LETTERS, scoring="english.v1").texts
    capitals = CharacterTokenizer(symbols=(*" 'ABCDEFGHIJKLMNOPQRSTUVWXYZ", None), normaliser="upper.v1")
    assert not count_round_trip(given, capitals, scoring="english.v1").texts
    counted = count_round_trip(given, capitals, scoring="english_letters.v1")
    assert not counted.texts  # the normaliser removes the number from the reference, which `count_removed` names
    assert found(count_round_trip(utterances("a–b c"), LETTERS, scoring="lower.v1")) == {("–", ""): (1, 1, "u0")}


def test_words_without_a_label_and_spaces():
    words = WordTokenizer(symbols=("a", "b", None), normaliser="none")
    assert found(count_round_trip(utterances("a cab a"), words)) == {("cab", ""): (1, 1, "u0")}
    spaces = count_round_trip(utterances("a  b"), words)
    assert found(spaces) == {("white space", "other white space"): (1, 1, "u0")}
    assert (spaces.wer, spaces.cer) == (0, 1 / 4)
    mixed = MixedTokenizer.train(["你好 well-known"], normaliser="none")
    assert found(count_round_trip(utterances("你 好well"), mixed)) == {
        ("white space", "other white space"): (1, 1, "u0")
    }
    assert not count_round_trip(utterances("你好well"), mixed).texts


def test_a_change_of_several_characters_names_the_words():
    counted = count_round_trip(utterances("cafe\u0301 at five"), pieces("nfkc", normaliser="none"))
    assert counted.texts == 1
    assert counted.parts


@pytest.mark.parametrize("tokenizer", [NoTokenizer(), IdTokenizer.up_to(3, blank_id=None)])
def test_labels_without_texts_are_not_compared(tokenizer):
    assert count_round_trip(utterances("5 ö"), tokenizer) == RoundTrip()


def test_token_ids_take_precedence():
    given = Utterances.of([Utterance("u", "/a.wav", "ö", 1.0, labels=(1, 2)), Utterance("v", "/b.wav", "ö", 1.0)])
    assert count_round_trip(given, LETTERS, takes_ids=True).num_texts == 1
    assert count_round_trip(given, LETTERS).num_texts == 2


@pytest.mark.parametrize("tokenizer", [LETTERS, FOLDING])
def test_with_labels_the_same_texts_are_named_without_rates(tokenizer):
    given = utterances("it is 5", "turn it on", "", "turn on").select(slice(0, 3))
    index, _ = build_index(given, scale=Scale(per_s=100, hop=10, num_values=80), tokenizer=tokenizer)
    whole = count_round_trip(given, tokenizer)
    assert count_round_trip(given, tokenizer, labels=index.labels) == replace(whole, wer=None, cer=None)
    assert (whole.texts, whole.num_texts) == (1, 3)
    exact = count_round_trip(utterances("on", "turn it on"), tokenizer, labels=index.labels)
    assert (exact.texts, exact.num_texts, exact.num_chars) == (0, 2, 12)


def test_parts_of_the_work_are_joined(monkeypatch):
    given = utterances(*["Turn it on.", "a", "5, b"] * 7)
    whole = count_round_trip(given, LETTERS)
    monkeypatch.setattr("asr_jax.data.manifests.progress.ROWS_PER_PART", 4)
    assert count_round_trip(given, LETTERS) == whole
    assert found(whole) == {(".", ""): (7, 7, "u0"), ("5", ""): (7, 7, "u2"), (",", ""): (7, 7, "u2")}


def test_the_training_set_says_what_happens_to_its_texts():
    def about(*texts):
        return about_round_trip(count_round_trip(utterances(*texts), LETTERS), "training", flag="", has_rates=False)

    assert "rejected, or trained with the unknown label\n" in about("it is 5")
    folded = count_round_trip(utterances("TURN"), FOLDING)
    message = about_round_trip(folded, "training", flag="--data.tokenizer.normaliser", has_rates=False)
    assert "1 of 1 training text is not what the labels write; the model learns what the labels write\n" in message
