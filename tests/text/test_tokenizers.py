"""Every kind of tokenizer: round trips in four scripts, ids of the blank, and saved and damaged folders."""

import json
import logging
import pickle

import pytest

from asr_jax.core.errors import UserError
from asr_jax.text.base import Tokenizer
from asr_jax.text.characters import CharacterTokenizer, IdTokenizer, WordTokenizer
from asr_jax.text.normalise import normalise
from asr_jax.text.pieces import train_model
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.tokenizers import OutOfVocabulary, TokenizerSettings, load_tokenizer, train_tokenizer

TEXTS = {
    "latin": ["Zwölf Boxkämpfer jagen Viktor", "it's a test", "the other one", "the test jagen"],
    "cyrillic": ["Съешь же ещё этих мягких булок", "да выпей чаю", "ещё чаю", "этих булок"],
    "chinese": ["我能吞下玻璃而不伤身体", "你好 世界", "我不能", "世界身体"],
    "arabic": ["أنا قادر على أكل الزجاج", "مَرْحَبًا بالعالم", "أنا على", "الزجاج بالعالم"],
}
KINDS = ["characters", "mixed", "sentencepiece"]
WAYS = [("characters", {}), ("words", {}), ("sentencepiece", {}), ("sentencepiece", {"pieces": "bpe"})]


def settings(kind, **changes):
    return TokenizerSettings(**({"kind": kind, "vocab_size": 40} | changes))


@pytest.mark.parametrize(("kind", "changes"), WAYS)
@pytest.mark.parametrize("script", TEXTS)
def test_round_trip_save_and_load(kind, changes, script, tmp_path):
    texts = TEXTS[script]
    tokenizer = train_tokenizer(settings(kind, **changes), (text for text in texts))
    tokenizer.save(tmp_path / "new" / "folder")
    loaded = load_tokenizer(tmp_path / "new" / "folder")
    assert loaded == tokenizer == pickle.loads(pickle.dumps(tokenizer))
    for text in texts:
        ids = loaded.encode(text)
        assert ids == tokenizer.encode(text)
        assert loaded.decode(ids) == normalise(text, "lower.v1")
        assert all(0 <= i < loaded.vocab_size for i in ids)
        assert loaded.blank_id not in ids
        assert None not in ids
        boundary = kind != "characters"  # the first word has one too
        assert tokenizer.num_letters[ids].sum() == len(normalise(text, "lower.v1")) + boundary


def test_words_beside_characters_without_spaces(tmp_path):
    texts = ["hello 你好 it's", "世界 hello world", "你 好"]
    tokenizer = train_tokenizer(settings("mixed"), texts)
    assert tokenizer.symbols == ("hello", "it's", "world", "世", "你", "好", "界", None)
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path) == tokenizer
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == ["hello你好it's", "世界hello world", "你好"]


def test_no_labels_at_all(tmp_path):
    tokenizer = train_tokenizer(TokenizerSettings(kind="none"), iter(TEXTS["latin"]))
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path) == tokenizer
    assert (tokenizer.vocab_size, tokenizer.blank_id, tokenizer.has_labels) == (1, 0, False)
    assert (tokenizer.encode("any text"), tokenizer.decode([])) == ([], "")
    assert train_tokenizer(settings("characters"), TEXTS["latin"]).has_labels
    with pytest.raises(ValueError, match=r"kind is none \(no labels\), but path is x: expected only one of the two"):
        TokenizerSettings(kind="none", path="x")


@pytest.mark.parametrize("kind", KINDS)
def test_the_blank_is_the_last_of_all_ids(kind):
    tokenizer = train_tokenizer(settings(kind), TEXTS["latin"])
    assert tokenizer.blank_id == tokenizer.vocab_size - 1 == len(tokenizer.symbols) - 1
    assert tokenizer.symbols[-1] is None
    assert None not in tokenizer.symbols[:-1]
    with pytest.raises(ValueError, match=f"{tokenizer.blank_id} is the blank"):
        tokenizer.decode([0, tokenizer.blank_id])
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""


def test_characters_are_those_of_the_normalised_texts_with_the_space():
    tokenizer = train_tokenizer(settings("characters"), ["Ba b", "Ab"])
    assert tokenizer.symbols == (" ", "a", "b", None)
    assert tokenizer.encode("B  A") == [2, 0, 1]
    given = train_tokenizer(settings("characters", alphabet="ba "), ["anything"])
    assert given.symbols == ("b", "a", " ", None)


def test_characters_out_of_the_vocabulary_raise_and_are_named():
    tokenizer = train_tokenizer(settings("characters"), ["abc"])
    with pytest.raises(OutOfVocabulary, match="' ', 'x', 'é'") as error:
        tokenizer.encode("aéX b")
    assert error.value.missing == [" ", "x", "é"]
    assert isinstance(error.value, ValueError)
    assert "<unk>" not in tokenizer.symbols


def test_words_are_symbols_and_other_words_are_named(tmp_path):
    tokenizer = train_tokenizer(settings("words"), ["Two one", "one  three"])
    assert tokenizer.symbols == ("one", "three", "two", None)
    assert tokenizer.decode(tokenizer.encode(" THREE one ")) == "three one"
    with pytest.raises(OutOfVocabulary, match="'four'"):
        tokenizer.encode("one four")
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path) == tokenizer
    with pytest.raises(UserError, match="training texts are empty"):
        train_tokenizer(settings("words"), [" "])


@pytest.mark.parametrize(
    ("normaliser", "text", "lost"),
    [
        ("english_letters.v1", "Knit 2 Wörlds, it's 22 % (ok)!", "2ö"),
        ("lower.v1", "Knit 2 Wörlds", ""),
        ("english.v1", "uh, 2 %", ""),
    ],
)
def test_letters_and_digits_that_the_normaliser_removes(normaliser, text, lost):
    assert CharacterTokenizer(symbols=("a", None), normaliser=normaliser).removed_from(text) == lost


def test_a_blank_may_be_anywhere():
    tokenizer = CharacterTokenizer(symbols=(None, "b", "a"), normaliser="none")
    assert tokenizer.blank_id == 0
    assert tokenizer.decode(tokenizer.encode("abba")) == "abba"
    model = SentencePieceTokenizer.train(
        TEXTS["latin"], vocab_size=30, pieces="bpe", character_coverage=1.0, normaliser="lower.v1"
    ).model
    inside = SentencePieceTokenizer.of_model(model, normaliser="lower.v1", blank_id=0)
    after = SentencePieceTokenizer.of_model(model, normaliser="lower.v1")
    assert (inside.blank_id, inside.vocab_size) == (0, after.vocab_size - 1)
    assert inside.encode("test") == after.encode("test")


def test_a_blank_inside_a_model_survives_a_folder(tmp_path):
    model = train_tokenizer(settings("sentencepiece"), TEXTS["latin"]).model
    tokenizer = SentencePieceTokenizer.of_model(model, normaliser="none", blank_id=0)
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path) == tokenizer


def test_a_text_that_spells_the_blank_is_out_of_the_vocabulary():
    texts = TEXTS["latin"]
    model = train_model(texts, vocab_size=40, with_blank=False, hard_vocab_limit=False, user_defined_symbols=["<blk>"])
    tokenizer = SentencePieceTokenizer.of_model(model, normaliser="none", blank_id=3)
    assert tokenizer.decode(tokenizer.encode("the test")) == "the test"
    with pytest.raises(OutOfVocabulary, match="'<blk>'"):
        tokenizer.encode("the <blk> test")
    unknown = SentencePieceTokenizer.of_model(model, normaliser="none", blank_id=0)
    with pytest.raises(OutOfVocabulary, match="'Ω'"):
        unknown.encode("the Ω test")


@pytest.mark.parametrize(("blank_id", "blank", "size"), [(None, 6, 7), (0, 0, 6), (5, 5, 6), (6, 6, 7)])
def test_given_ids_are_symbols_up_to_the_largest(blank_id, blank, size, tmp_path):
    tokenizer = IdTokenizer.up_to(5, blank_id=blank_id)
    assert (tokenizer.blank_id, tokenizer.vocab_size) == (blank, size)
    ids = [i for i in (3, 1, 1, 4, 2) if i != blank]
    assert tokenizer.decode(ids) == " ".join(map(str, ids))
    assert tokenizer.encode(tokenizer.decode(ids)) == ids
    for wrong in (str(blank), "7", "x", "03"):
        with pytest.raises(OutOfVocabulary, match=repr(wrong)):
            tokenizer.encode(f"3 {wrong}")
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path) == tokenizer


def test_a_blank_beyond_given_ids_is_an_error():
    assert settings("ids", blank_id=0).takes_ids
    assert not settings("words").takes_ids
    assert train_tokenizer(settings("ids", blank_id=0), [], largest_id=9).symbols[:2] == (None, "1")
    with pytest.raises(UserError, match=r"blank_id 11: the largest id is 9; expected at most 10"):
        train_tokenizer(settings("ids", blank_id=11), [], largest_id=9)


def test_digests_are_equal_where_texts_get_the_same_ids():
    a, b = (train_tokenizer(settings("characters", alphabet=alphabet), []) for alphabet in ("ab", "ba"))
    other_normaliser = train_tokenizer(settings("characters", alphabet="ab", normaliser="none"), [])
    words = WordTokenizer(symbols=a.symbols, normaliser=a.normaliser)
    pieces = [
        train_tokenizer(settings("sentencepiece", pieces=pieces), TEXTS["latin"]) for pieces in ("unigram", "bpe")
    ]
    assert len({tokenizer.digest() for tokenizer in (a, b, other_normaliser, words, *pieces)}) == 6
    assert a.digest() == train_tokenizer(settings("characters", alphabet="ab"), ["x"]).digest()


@pytest.mark.parametrize("pieces", ["unigram", "bpe"])
def test_a_small_corpus_gives_fewer_pieces_and_says_so(pieces, caplog):
    with caplog.at_level(logging.WARNING):
        tokenizer = train_tokenizer(settings("sentencepiece", vocab_size=500, pieces=pieces), TEXTS["latin"])
    assert 20 < tokenizer.vocab_size < 500
    assert f"4 texts are too few for a vocabulary of 500: it has {tokenizer.vocab_size} labels" in caplog.text


def test_pieces_are_as_many_as_asked_for_where_texts_suffice(caplog):
    tokenizer = train_tokenizer(settings("sentencepiece", vocab_size=30, pieces="bpe"), TEXTS["latin"])
    assert tokenizer.vocab_size == 30
    assert not caplog.text


def test_pieces_are_the_same_every_time_and_hold_no_bytes():
    first, second = (train_tokenizer(settings("sentencepiece"), TEXTS["cyrillic"]) for _ in range(2))
    assert first == second
    assert not [piece for piece in first.symbols if piece and piece.startswith("<0x")]
    assert first.symbols[first.encode("чаю Ω")[-1]] == "<unk>"


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_is_an_error(kind):
    with pytest.raises(UserError, match="training texts are empty"):
        train_tokenizer(settings(kind), ["", "  "])


def test_a_vocabulary_below_the_characters_is_an_error():
    alphabet = set("".join(TEXTS["latin"]).lower()) - {" "}
    with pytest.raises(UserError, match=f"vocabulary of 12 .*expected at least {len(alphabet) + 3}"):
        train_tokenizer(settings("sentencepiece", vocab_size=12), TEXTS["latin"])
    enough = train_tokenizer(settings("sentencepiece", vocab_size=len(alphabet) + 3), TEXTS["latin"])
    assert enough.vocab_size == len(alphabet) + 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normaliser": "lower"}, "'lower'.*did you mean 'lower.v1'"),
        ({"alphabet": "aba"}, "'aba'.*each character once"),
        ({"vocab_size": 3}, "3: expected at least 4"),
        ({"blank_id": 3}, "blank_id is 3: expected -1 if the tokenizer is trained on texts"),
    ],
)
def test_settings_say_what_they_expect(changes, message):
    with pytest.raises(ValueError, match=message):
        TokenizerSettings(**changes)


def damage(folder, kind, how):
    path = folder / "tokenizer.json"
    description = json.loads(path.read_text("utf-8"))
    changes = {
        "another kind": {"kind": "character"},
        "no kind": {"kind": None},
        "another normaliser": {"normaliser": "upper.v0"},
        "no symbols": {"symbols": None},
        "two blanks": {"symbols": [None, "a", None]},
        "another blank": {"blank_id": 1},
        "other symbols": {"symbols": [*description["symbols"], "x", None]},
    }
    if how in changes:
        path.write_text(json.dumps(description | changes[how]), "utf-8")
    elif how == "not JSON":
        path.write_text(path.read_text("utf-8")[:-9], "utf-8")
    elif how == "not text":
        path.write_bytes(b"\xff\xfe\x00")
    elif how == "a list":
        path.write_text("[]")
    elif how == "nothing there":
        path.unlink()
    elif how == "no model":
        (folder / "tokenizer.model").unlink()
    else:
        model = folder / "tokenizer.model"
        model.write_bytes(model.read_bytes()[: {"half a model": 300, "an empty model": 0}[how]])


FOLDER_DAMAGE = [
    "another kind", "no kind", "another normaliser", "no symbols", "two blanks", "another blank", "other symbols",
    "not JSON", "not text", "a list", "nothing there",
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "how"),
    [(kind, how) for kind in ("characters", "sentencepiece") for how in FOLDER_DAMAGE]
    + [("sentencepiece", how) for how in ("no model", "half a model", "an empty model")],
)
def test_a_damaged_folder_is_an_error_that_names_it(kind, how, tmp_path):
    train_tokenizer(settings(kind), TEXTS["latin"]).save(tmp_path)
    damage(tmp_path, kind, how)
    with pytest.raises(UserError, match=str(tmp_path)):
        load_tokenizer(tmp_path)


def test_kinds_are_tokenizers():
    assert issubclass(CharacterTokenizer, Tokenizer)
    assert issubclass(WordTokenizer, Tokenizer)
    assert issubclass(SentencePieceTokenizer, Tokenizer)
    assert issubclass(IdTokenizer, Tokenizer)
