"""Characters that a tokenizer removes from the texts of a set."""

from dataclasses import replace

import pytest

from asr_jax.core.errors import UserError
from asr_jax.data.batching.removals import Removed, about_removed, check_removed, count_removed
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.characters import CharacterTokenizer, IdTokenizer, NoTokenizer
from asr_jax.text.tokenizers import Tokenizer

LETTERS = CharacterTokenizer(symbols=(*" abcdefghijklmnopqrstuvwxyz", None), normaliser="english_letters.v1")


def utterances(*texts: str) -> Utterances:
    return Utterances.of(Utterance(f"u{i}", f"/a/{i}.wav", text, 2.0) for i, text in enumerate(texts))


def count(tokenizer: Tokenizer, *texts: str) -> Removed:
    return count_removed(utterances(*texts), tokenizer)


def found(removed: Removed) -> dict[str, tuple[int, int, str]]:
    return {part.part: (part.number, part.texts, part.id) for part in removed.parts}


def test_occurrences_texts_and_the_first_utterance():
    removed = count(LETTERS, "plain", "köln, köln", "ö. 5")
    assert found(removed) == {"ö": (3, 2, "u1"), ",": (1, 1, "u1"), ".": (1, 1, "u2"), "5": (1, 1, "u2")}
    assert {part.by for part in removed.parts} == {"the normaliser english_letters.v1"}
    assert removed.num_chars == len("plainköln, kölnö. 5")
    assert removed.share == 4 / removed.num_chars
    assert [part.part for part in removed.spoken] == ["ö", "5"]


def test_apostrophes_within_words_are_kept():
    removed = count(replace(LETTERS, normaliser="words.v1"), "don't, l'eau", "'quoted'")
    assert found(removed) == {",": (1, 1, "u0"), "'": (2, 1, "u1")}


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


@pytest.mark.parametrize("normaliser", ["none", "lower.v1", "english_letters.v1"])
def test_invisible_characters_are_removed_by_every_normaliser_and_named(normaliser):
    removed = count(replace(LETTERS, normaliser=normaliser), "a\u200bb", "plain", "\ufeffa\u200bb\u200b", "می\u200cخ")
    unseen = {part.part: (part.number, part.texts, part.id) for part in removed.invisible}
    assert unseen == {"\u200b": (3, 2, "u0"), "\ufeff": (1, 1, "u2")}
    assert {part.by for part in removed.invisible} == {"every normaliser"}
    assert "'\\u200b' (ZERO WIDTH SPACE): 3 times in 2 texts, by every normaliser" in about_removed(removed, "training")
    if normaliser != "english_letters.v1":  # which removes the Persian letters as well
        assert removed.share == 0
        assert about_removed(removed, "training").startswith("4 invisible characters of the training texts become no")


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
