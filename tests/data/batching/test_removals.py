"""Characters that a tokenizer removes from the texts of a set."""

from dataclasses import replace

import pytest

from asr_jax.core.errors import UserError
from asr_jax.data.batching.buckets import Scale
from asr_jax.data.batching.index import build_index
from asr_jax.data.batching.removals import Removed, check_removed, count_absent, count_removed, share_absent
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.characters import CharacterTokenizer, IdTokenizer, NoTokenizer, WordTokenizer
from asr_jax.text.tokenizers import Tokenizer, TokenizerSettings, train_tokenizer

LETTERS = CharacterTokenizer(symbols=(*" abcdefghijklmnopqrstuvwxyz", None), normaliser="english_letters.v1")


def utterances(*texts: str) -> Utterances:
    return Utterances.of(Utterance(f"u{i}", f"/a/{i}.wav", text, 2.0) for i, text in enumerate(texts))


def count(tokenizer: Tokenizer, *texts: str) -> Removed:
    """Counts with labels, as for a training set."""
    given = utterances(*texts)
    index, _ = build_index(given, scale=Scale(per_s=100, hop=10, num_values=80), tokenizer=tokenizer)
    return count_removed(given, tokenizer, labels=index.labels)


def found(removed: Removed) -> dict[str, tuple[int, int, str]]:
    return {part.part: (part.number, part.texts, part.id) for part in removed.parts}


def test_occurrences_texts_and_the_first_utterance():
    removed = count(LETTERS, "plain", "köln, köln", "ö. 5")
    assert found(removed) == {"ö": (3, 2, "u1"), ",": (1, 1, "u1"), ".": (1, 1, "u2"), "5": (1, 1, "u2")}
    assert {part.by for part in removed.parts} == {"the normaliser english_letters.v1"}
    assert removed.num_chars == len("plainköln, kölnö. 5")
    assert removed.share == 4 / removed.num_chars
    assert [part.part for part in removed.spoken] == ["ö", "5"]


@pytest.mark.parametrize("normaliser", ["ascii.v1", "english.v1", "whisper_english.v1"])
def test_replaced_letters_count_toward_the_limit(normaliser):
    german = utterances("größe äpfel übrigens", "plain")
    removed = count_removed(german, replace(LETTERS, normaliser=normaliser))
    parts = {part.part: part.replacement for part in removed.parts}
    assert parts == {"ö": "o", "ß": "ss", "ä": "a", "ü": "u"}
    assert removed.share == 4 / 25
    assert "'ö' → 'o' (LATIN SMALL LETTER O WITH DIAERESIS)" in removed.parts[0].description
    assert "replaced by 'o'" in removed.entries()[0].reason
    with pytest.raises(UserError, match=r"4 of 25 characters .* are removed or replaced"):
        check_removed(removed, limit=0.005, what="training")


def test_a_subset_of_the_rows():
    assert found(count_removed(utterances("ä", "ö", "ö").select(slice(2, 3)), LETTERS)) == {"ö": (1, 1, "u2")}


def test_characters_outside_of_a_vocabulary():
    small = CharacterTokenizer(symbols=(*" ab", None), normaliser="lower.v1")
    assert found(count(small, "ab", "Cab c", "")) == {"c": (2, 1, "u1")}
    assert found(count(WordTokenizer(symbols=("a", "b", None), normaliser="lower.v1"), "a cab a", "b")) == {
        "cab": (1, 1, "u0")
    }
    assert not count_removed(utterances("cab"), small).parts  # without labels, as for error rates


def test_characters_of_references_that_a_vocabulary_lacks():
    absent = count_absent(utterances("Köln", "zug 😀, ö", "ab"), LETTERS)
    assert not absent.parts  # the normaliser removes them
    absent = count_absent(utterances("Köln", "zug 😀, ö", "ab"), replace(LETTERS, normaliser="lower.v1"))
    assert found(absent) == {"ö": (2, 2, "u0"), "😀": (1, 1, "u1"), ",": (1, 1, "u1")}
    assert absent.entries()[0].reason == "character not in the vocabulary, 2 times in 2 texts, first in 'Köln'"
    assert share_absent(absent, "validation").startswith("3 of 14 characters (21 %) of the validation texts are not in")
    assert not share_absent(count_absent(utterances("ab"), LETTERS), "validation")
    words = WordTokenizer(symbols=("a", "b", None), normaliser="lower.v1")
    assert found(count_absent(utterances("a cab a"), words)) == {"cab": (1, 1, "u0")}
    pieces = train_tokenizer(TokenizerSettings(kind="sentencepiece", vocab_size=12), ["abc abd bcd cda"] * 50)
    assert found(count_absent(utterances("abc öab", "dd"), pieces)) == {"ö": (1, 1, "u0")}
    assert count_absent(utterances("ö"), NoTokenizer()) == Removed((), 0)


def test_characters_without_a_piece():
    settings = TokenizerSettings(kind="sentencepiece", vocab_size=12)
    removed = count(train_tokenizer(settings, ["abc abd bcd cda"] * 50), "abc öab", "dd")
    assert found(removed) == {"ö": (1, 1, "u0")}
    assert removed.parts[0].by == "the vocabulary"


@pytest.mark.parametrize("tokenizer", [NoTokenizer(), IdTokenizer.up_to(3, blank_id=None)])
def test_without_texts_nothing_is_removed(tokenizer):
    assert count_removed(utterances("köln"), tokenizer) == Removed((), 0)


def test_token_ids_take_precedence():
    given = Utterances.of([Utterance("u", "/a.wav", "ö", 1.0, labels=(1, 2))])
    assert not count_removed(given, LETTERS, takes_ids=True).parts
    assert count_removed(given, LETTERS).parts


def test_the_limit_names_the_characters_and_three_ways_to_continue():
    removed = count(LETTERS, "k" * 97 + "ööü", "." * 100)
    check_removed(removed, limit=0.015, what="training")
    with pytest.raises(UserError) as error:
        check_removed(removed, limit=0.0149, what="training")
    lines = str(error.value).splitlines()
    assert lines[0].startswith("3 of 200 characters (1.5 %) of the training texts are removed")
    assert lines[1].startswith("  'ö' (LATIN SMALL LETTER O WITH DIAERESIS): 2 times in 1 text, by the normaliser")
    assert [line.split(":")[0] for line in lines[-3:]] == [
        "  keep them",
        "  rewrite them",
        "  train without them, with any replacements",
    ]
    assert lines[-1].endswith("--data.max-removed-share 0.02")
