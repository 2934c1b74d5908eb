"""Texts with any quotes, written with and without quotes of CSV, are read as they were."""

import csv
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.text_tables import read_text_table
from asr_jax.data.manifests.utterances import Utterance

pytestmark = pytest.mark.slow

WORDS = st.sampled_from(['"', '""', "a", "b c", ", ", "'", "é", "\t", "|", "\n", ";"])
TEXTS = st.lists(st.lists(WORDS, max_size=8).map("".join).map(str.strip).filter(bool), min_size=1, max_size=8)
SETTINGS = settings(max_examples=400, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def read_texts(path: Path) -> list[str]:
    entries = list(read_text_table(str(path), ReadOptions()))
    assert all(isinstance(entry, Utterance) for entry in entries), entries
    return [entry.text for entry in entries if isinstance(entry, Utterance)]


@pytest.mark.parametrize("separator", ["\t", "|", ",", ";"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
def test_texts_with_quotes_of_csv(separator: str, quoting: int) -> None:
    @SETTINGS
    @given(TEXTS)
    def check(texts: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "t.tsv"
            with path.open("w", newline="", encoding="utf-8") as file:
                rows = [["path", "text"], *(["a.wav", text] for text in texts)]
                csv.writer(file, delimiter=separator, quoting=quoting, lineterminator="\n").writerows(rows)
            assert read_texts(path) == texts

    check()


def test_texts_without_quotes_of_csv_between_tabs() -> None:
    def is_plain(text: str) -> bool:
        return "\t" not in text and "\n" not in text and not (text.startswith('"') and '""' in text)

    @SETTINGS
    @given(TEXTS.map(lambda texts: list(filter(is_plain, texts))).filter(bool))
    def check(texts: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "t.tsv"
            path.write_text("path\ttext\n" + "".join(f"a.wav\t{text}\n" for text in texts), encoding="utf-8")
            assert read_texts(path) == texts

    check()
