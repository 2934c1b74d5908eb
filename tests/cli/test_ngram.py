"""The command for n-gram language models: decoding reads its file, which has the normalised words of the texts."""

import pytest

from asr_jax.cli.ngram import main
from asr_jax.core.errors import UserError
from asr_jax.search.language_model import model_words


def test_the_model_has_the_normalised_words(tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("One TWO\n\n我能\u200b two\n", "utf-8")
    main(["--input", str(tmp_path / "texts.txt"), "--output", str(tmp_path / "made/lm.arpa"), "--order", "2"])
    assert model_words(tmp_path / "made/lm.arpa") == {"one", "two", "我", "能"}
    output = capsys.readouterr().out
    assert "invisible characters are removed from the texts: '\\u200b' (" in output
    assert "lm.arpa: 7 1-grams, 6 2-grams of 5 words in 2 texts" in output


def test_an_output_that_is_an_input_is_refused(tmp_path):
    (tmp_path / "texts.txt").write_text("one\n", "utf-8")
    with pytest.raises(UserError, match="--output"):
        main(["--input", str(tmp_path / "texts.txt"), "--output", str(tmp_path / "texts.txt")])
