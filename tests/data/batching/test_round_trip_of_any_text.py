"""The round trip of any Unicode text is counted as changed if, and only if, the decoded labels differ."""

import pytest

from asr_jax.data.batching.round_trip import count_round_trip
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.metrics.errors import count_errors
from asr_jax.text.base import OutOfVocabulary
from asr_jax.text.characters import CharacterTokenizer, WordTokenizer
from asr_jax.text.invisible import visible
from asr_jax.text.mixed import MixedTokenizer
from asr_jax.text.normalise import normalise
from asr_jax.text.pieces import train_model
from asr_jax.text.segmentation import has_unspaced
from asr_jax.text.sentencepiece import SentencePieceTokenizer

pytest.importorskip("hypothesis", reason="needs hypothesis: pip install -e '.[dev]'")

from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

TEXTS = ["Turn the lights on, at 5!", "straße ﬁnd Ａ café 你好 world", "we can't", "you zip jump quickly"]


def pieces(rule: str, **more) -> SentencePieceTokenizer:
    rules = {"normalization_rule_name": rule, "hard_vocab_limit": False, **more}
    model = train_model(TEXTS * 20, vocab_size=400, with_blank=False, **rules)
    return SentencePieceTokenizer.of_model(model, normaliser="none")


TOKENIZERS = {
    "characters": CharacterTokenizer(symbols=(*" 'abcdefghijklmnopqrstuvwxyz", None), normaliser="lower.v1"),
    "capitals": CharacterTokenizer(symbols=(*" 'ABCDEFGHIJKLMNOPQRSTUVWXYZ", None), normaliser="upper.v1"),
    "words": WordTokenizer.train(TEXTS, normaliser="none"),
    "mixed": MixedTokenizer.train(TEXTS, normaliser="none"),
    "nmt_nfkc": pieces("nmt_nfkc"),
    "nmt_nfkc_cf": pieces("nmt_nfkc_cf"),
    "identity": pieces("identity"),
    "bytes": pieces("nfkc", byte_fallback=True),
}
ANY = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
PARTS = (*" ".join(TEXTS).split(), " ", "  ", ".", "TURN", "ﬁ", "\u200b", "e\u0301")
KNOWN = st.lists(st.sampled_from(PARTS), max_size=8)
TEXT = ANY | KNOWN.map(" ".join) | KNOWN.map("".join)


def is_changed(text: str, tokenizer) -> bool:
    """Whether decoded labels differ from the text as it is scored."""
    normalised = normalise(text, tokenizer.normaliser)
    try:
        ids = tokenizer.encode(text)
    except OutOfVocabulary:
        return True
    unknown = tokenizer.unknown_id in ids
    return unknown or normalise(tokenizer.decode(ids), tokenizer.normaliser) != normalised


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=300, deadline=None)
@given(texts=st.lists(TEXT, min_size=1, max_size=4))
def test_a_text_is_named_if_and_only_if_its_labels_write_another(name, texts):
    tokenizer = TOKENIZERS[name]
    given_texts = Utterances.of(Utterance(str(i), f"/{i}.wav", text, 1.0) for i, text in enumerate(texts))
    found = count_round_trip(given_texts, tokenizer)
    changed = [text for text in texts if is_changed(text, tokenizer)]
    assert found.texts == len(changed)
    assert bool(found.parts) == bool(changed)
    assert all(part.text in changed for part in found.parts)
    assert all(part.texts <= len(changed) and part.part not in ("", part.replacement) for part in found.parts)
    if not changed:
        assert found.wer in (None, 0)
        assert found.cer in (None, 0)


@settings(max_examples=300, deadline=None)
@given(reference=TEXT, hypothesis=TEXT)
def test_no_text_of_the_labels_has_fewer_errors_than_the_lowest_rate(reference, hypothesis):
    """For labels of characters, which write all texts of the alphabet.

    In scripts without spaces, a letter without a label may join its neighbours to one word, which costs more errors.
    """
    assume(not has_unspaced(reference + hypothesis))
    tokenizer = TOKENIZERS["characters"]
    utterances = Utterances.of([Utterance("u", "/u.wav", reference, 1.0)])
    lowest = count_round_trip(utterances, tokenizer)
    writable = tokenizer.written(normalise(hypothesis, "lower.v1"))
    edits = count_errors([normalise(reference, "lower.v1")], [normalise(writable, "lower.v1")])[0]
    if lowest.wer is not None:
        assert round(lowest.wer * edits[3]) <= edits[:3].sum()


@settings(max_examples=500, deadline=None)
@given(text=TEXT)
def test_removing_invisible_characters_twice_changes_nothing(text):
    once = visible(text)
    assert visible(once) == once
    assert [each for each in once if each.isprintable()] == [each for each in text if each.isprintable()]
    assert len(once.split()) <= len(text.split())
