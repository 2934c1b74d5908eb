"""TSV and CSV: ready features without a header line, and tables of Common Voice and others with one."""

import csv
from pathlib import Path

import numpy as np
import pytest
import soundfile
from recordings import check_conversion, check_signals, noise, read, signal, write
from support import SHARED

from asr_jax.core.errors import UserError

CASES = SHARED / "cases"
COMMON_VOICE = SHARED / "data" / "read_speech" / "formats" / "common-voice-en"
FRAMES = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def table(path: Path, *rows: str) -> Path:
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def test_features_without_names(tmp_path: Path) -> None:
    """Lines are `features_path⇥rows⇥cols⇥tokens⇥text` with an optional text."""
    (tmp_path / "a.txt").write_text(" ".join(map(repr, FRAMES.ravel().tolist())))
    np.save(tmp_path / "b.npy", FRAMES)
    path = table(tmp_path / "m.tsv", "a.txt\t6\t4\t1 2 3\thello there", "b.npy\t6\t4\t7", "b.npy\t6\t4\t\tgrüß")
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == ["a.txt", "b.npy", "b.npy#2"]
    assert [utterance.text for utterance in utterances] == ["hello there", "", "grüß"]
    assert [utterance.labels for utterance in utterances] == [(1, 2, 3), (7,), None]
    assert [(r.num_frames, r.num_values, r.duration_s) for r in utterances] == [(6, 4, 0.06)] * 3
    check_signals(utterances, [FRAMES] * 3)
    check_conversion(tmp_path, path)


def test_common_voice_and_others_like_it(tmp_path: Path) -> None:
    samples = [noise(1), noise(2)]
    for number, part in enumerate(samples):
        write(tmp_path / "clips" / f"{number}.wav", part)
    names = "client_id\tpath\tsentence\tup_votes\tsegment"
    path = table(tmp_path / "train.tsv", names, 's1\t0.wav\t"Quoted," he said.\t2\t', "s2\t1.wav\tšest")
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == ["0.wav", "1.wav"]
    assert [utterance.text for utterance in utterances] == ['"Quoted," he said.', "šest"]
    assert [utterance.speaker for utterance in utterances] == ["s1", "s2"]
    check_signals(utterances, samples)
    check_conversion(tmp_path, path)


def test_csv(tmp_path: Path) -> None:
    """CSV with quotes, a byte-order mark, Windows line ends, names in capitals, numbers and token ids."""
    samples = noise(1)
    write(tmp_path / "a.wav", samples)
    lines = [
        "ID,wav,Transcript,offset,duration,tokens,other",
        '7,a.wav,"Yes, ""he"" said",0.05,0.1,"1 2",',
        ",a.wav,no",
    ]
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n")
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == ["7", "a.wav"]
    assert [utterance.text for utterance in utterances] == ['Yes, "he" said', "no"]
    assert [utterance.labels for utterance in utterances] == [(1, 2), None]
    assert [utterance.duration_s for utterance in utterances] == [0.1, 3000 / 16000]
    check_signals(utterances, [samples[800:2400], samples])
    check_conversion(tmp_path, path)


GOOD = "a\t1\t1\t1\ttext"


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("m.tsv", b"a\t1\t1", "3 columns; expected features_path"),
        ("m.tsv", b"a\tx\t1\t1", "rows 'x', cols '1': expected whole numbers"),
        ("m.tsv", b"a\t0\t1\t1", "expected rows and cols above 0"),
        ("m.tsv", b"a\t1\t1\tone", 'tokens are "one"; expected ids'),
        (
            "m.tsv",
            b"a\t1\t1\t1\t\xe9",
            "not UTF-8 (byte 0xe9 at 8); save it as UTF-8; from Latin-1: iconv -f LATIN1 -t UTF-8 IN > OUT",
        ),
        ("n.csv", b"1,2,3,4", "4 columns; expected 3"),
        ("n.csv", b"a,b,long", '"duration" is "long"; expected a finite number'),
        ("n.csv", b'a,"b', "expected one utterance per line, and quotes in pairs"),
        ("n.csv", b"a", 'no "text"'),
        ("n.csv", b"x," + b"b" * 200_000, "not a line of CSV"),
    ],
)
def test_a_broken_row_is_named_and_the_others_are_read(tmp_path: Path, name: str, row: bytes, reason: str) -> None:
    good = [GOOD] * 20 if name == "m.tsv" else ["path,text,duration", *["a.wav,b,1"] * 20]
    path = tmp_path / name
    path.write_bytes(b"\n".join([*(line.encode() for line in good), b"", row, good[-1].encode(), b""]))
    utterances = read(tmp_path, path)
    assert len(utterances) == 21
    (rejected,) = utterances.rejected
    assert rejected.location == f"{path}:{len(good) + 2}"
    assert reason in rejected.reason


def test_features_with_names_and_without_texts(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", FRAMES)
    path = table(tmp_path / "m.tsv", "features_path\trows\tcols\ttokens", "b.npy\t6.0\t4\t1 2")
    (utterance,) = read(tmp_path, path)
    assert (utterance.labels, utterance.num_frames, utterance.num_values) == ((1, 2), 6, 4)
    check_signals(read(tmp_path, path), [FRAMES])


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("m.tsv", [*[GOOD] * 20, "a\t1\t1\t1\tte"]),
        ("n.csv", ["path,text,duration", *["a.wav,b,1"] * 20, "a.wav,b"]),
    ],
)
def test_a_cut_last_row_is_named(tmp_path: Path, path: str, lines: list[str]) -> None:
    (tmp_path / path).write_text("\n".join(lines))
    utterances = read(tmp_path, tmp_path / path)
    assert len(utterances) == 20
    (rejected,) = utterances.rejected
    assert rejected.location == f"{tmp_path / path}:{len(lines)}"
    assert "the last line has no newline: the file may be truncated" in rejected.reason


@pytest.mark.parametrize("separator", [",", ";", "|", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_separators_quoted_line_ends_and_no_final_line_end(tmp_path: Path, separator: str, end: str) -> None:
    is_csv = separator != "\t"
    text = f'"two{end}lines{separator} ""and"" more"' if is_csv else "one line"
    rows = [("wav_filename", "wav_filesize", "transcript"), ("a.wav", "6044", text), ("b.wav", "6044", "last")]
    for name in "ab":
        write(tmp_path / f"{name}.wav", noise(1))
    path = tmp_path / "train.csv"
    path.write_bytes(end.join(separator.join(row) for row in rows).encode())
    utterances = read(tmp_path, path)
    expected = f'two\nlines{separator} "and" more' if is_csv else "one line"
    assert [utterance.text for utterance in utterances] == [expected, "last"]
    assert not utterances.rejected
    check_conversion(tmp_path, path)


QUOTATIONS = ['"Good-bye," said he.', "plain", "two\nlines", 'a "b" c', "a\tb|c,d;e", '"all"', 'end"', '"', ""]


@pytest.mark.parametrize("separator", ["\t", "|", ",", ";"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_quotes_of_csv_between_any_separators(tmp_path: Path, separator: str, quoting: int) -> None:
    """Tables as pandas writes them, also without a value that needs quotes."""
    write(tmp_path / "a.wav", noise(1))
    for texts in (QUOTATIONS, ["plain", "words"]):
        path = tmp_path / f"{len(texts)}.tsv"
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = [["path", "sentence"], *(["a.wav", text] for text in texts)]
            csv.writer(file, delimiter=separator, quoting=quoting, lineterminator="\n").writerows(rows)
        utterances = read(tmp_path, path)
        assert [utterance.text for utterance in utterances] == [text for text in texts if text]
        assert len(utterances.rejected) == texts.count("")  # an empty value is none


@pytest.mark.parametrize("separator", ["\t", "|"])
def test_quotes_of_texts_between_tabs_and_bars(tmp_path: Path, separator: str) -> None:
    texts = ['"Quoted," he said.', '"all"', 'a "b" c', '"open', 'end"', '5" tall']
    path = table(tmp_path / "t.tsv", f"path{separator}sentence{separator}duration")
    with path.open("a") as file:
        file.writelines(f"a.wav{separator}{text}{separator}1\n" for text in texts)
    utterances = read(tmp_path, path)
    assert [utterance.text for utterance in utterances] == texts
    assert not utterances.rejected


def test_the_majority_tells_quotes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    of_csv, other = 'a.wav\t"say ""yes"""\t1', 'b.wav\t"Quoted," he said.\t1'
    path = table(tmp_path / "csv.tsv", "path\tsentence\tduration", *[of_csv] * 30, other)
    utterances = read(tmp_path, path)
    assert {utterance.text for utterance in utterances} == {'say "yes"'}
    assert ["not a line of CSV" in entry.reason for entry in utterances.rejected] == [True]
    assert f"{path}: 30 values in quotes of CSV, and 1 with other quotes: read with quotes of CSV" in caplog.text
    path = table(tmp_path / "other.tsv", "path\tsentence\tduration", *[other] * 3, of_csv)
    texts = [utterance.text for utterance in read(tmp_path, path)]
    assert texts == ['"Quoted," he said.'] * 3 + ['"say ""yes"""']
    assert f"{path}: 1 value in quotes of CSV, and 3 with other quotes: read without quotes" in caplog.text


@pytest.mark.skipif(not CASES.exists(), reason=f"no {CASES}: set ASR_JAX_SHARED to its folder")
def test_the_table_of_pandas(tmp_path: Path) -> None:
    path = tmp_path / "pandas.tsv"
    path.write_bytes((CASES / "quoted-tsv" / "pandas.tsv").read_bytes())
    for name in ("a.wav", "b.wav", "c d.wav"):
        write(tmp_path / name, noise(1))
    utterances = read(tmp_path, path)
    assert [each.text for each in utterances] == ['"Good-bye," said the boy.', "plain text", "two\nlines"]
    check_conversion(tmp_path, path)


@pytest.mark.parametrize(("first", "separator"), [("sep=;", ";"), ('"sep=,"', ","), ("SEP=|", "|"), ("sep=\t", "\t")])
def test_the_line_that_tells_excel_the_separator(tmp_path: Path, first: str, separator: str) -> None:
    write(tmp_path / "a.wav", noise(1))
    path = table(tmp_path / "t.csv", "", first, f"path{separator}text", f"a.wav{separator}one, two")
    if separator == ",":
        path = table(path, first, "path,text", 'a.wav,"one, two"')
    assert [utterance.text for utterance in read(tmp_path, path)] == ["one, two"]


def test_line_numbers_after_a_quoted_line_end(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", noise(1))
    (tmp_path / "t.csv").write_text('path,text\n"a.wav","b\nc"\na.wav,d\na.wav,e,f\n')
    utterances = read(tmp_path, tmp_path / "t.csv")
    assert [entry.location for entry in utterances.rejected] == [f"{tmp_path}/t.csv:5"]


def test_blank_lines_and_spaces_after_separators(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", noise(1))
    (tmp_path / "t.csv").write_text('\n\nText, Path\n"b, c", a.wav\n\n"d", "a.wav"\n')
    utterances = read(tmp_path, tmp_path / "t.csv")
    assert [utterance.text for utterance in utterances] == ["b, c", "d"]
    assert not utterances.rejected


@pytest.mark.parametrize(
    ("separator", "texts", "rejected"),
    [
        (",", {3: 'he is 5" tall', 29: 'he is 5" tall'}, []),
        ("|", dict.fromkeys(range(40), 'say "q, x'), []),
        (",", {3: '"go', 29: '"stop" he said'}, [3, 29]),
        (",", {3: '"go', 5: '"two\nlines"'}, [3]),
        (",", {3: '"go'}, [3]),
    ],
)
def test_single_quotes_lose_no_other_row(
    tmp_path: Path, separator: str, texts: dict[int, str], rejected: list[int]
) -> None:
    rows = [f"{row}.wav{separator}1{separator}{texts.get(row, 'text')}" for row in range(40)]
    path = table(tmp_path / "t.csv", f"path{separator}duration{separator}text", *rows)
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == [f"{row}.wav" for row in range(40) if row not in rejected]
    assert [utterance.text for utterance in utterances] == [
        texts.get(row, "text").strip('"') for row in range(40) if row not in rejected
    ]
    first_line = 2
    assert [each.location for each in utterances.rejected] == [
        f"{path}:{row + first_line + (5 in texts and row > 5)}" for row in rejected
    ]


@pytest.mark.parametrize("columns", ["path,duration,text", "text,duration,path"])
def test_two_single_quotes_that_look_like_a_pair_join_no_rows(tmp_path: Path, columns: str) -> None:
    names = columns.split(",")

    def row(number: int, text: str) -> str:
        values = {"path": f"{number}.wav", "duration": "1", "text": text}
        return ",".join(values[name] for name in names)

    texts = {3: '"go', 29: 'stop"', 33: '"two\nlines, of it"'}
    path = table(tmp_path / "t.csv", columns, *(row(number, texts.get(number, "text")) for number in range(40)))
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == [f"{number}.wav" for number in range(40) if number != 3]
    assert [utterances[place].text for place in (28, 32)] == ['stop"', "two\nlines, of it"]
    assert [each.location for each in utterances.rejected] == [f"{path}:5"]


def test_ljspeech_without_its_folder(tmp_path: Path) -> None:
    path = table(tmp_path / "metadata.csv", "LJ001-0001|Printing, in the only sense|Printing, in the only sense")
    with pytest.raises(UserError, match=rf"as in metadata.csv of LJSpeech, but there is no folder {tmp_path}/wavs"):
        read(tmp_path, path)


def test_a_decimal_comma_is_named(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "path;text;duration", *["a.wav;b;1.5"] * 20, "a.wav;b;1,645")
    (rejected,) = read(tmp_path, path).rejected
    assert rejected.reason.endswith(
        'is "1,645"; expected a finite number of seconds, with a decimal point instead of the comma'
    )


def test_columns_without_known_names_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("sound,speech\na.wav,b\n")
    with pytest.raises(UserError, match=r"t.csv:1: the columns 'sound', 'speech' have fewer than two known names"):
        read(tmp_path, tmp_path / "t.csv")


def test_one_row_alone_needs_no_line_end(tmp_path: Path) -> None:
    (tmp_path / "m.tsv").write_text(GOOD)
    assert [utterance.text for utterance in read(tmp_path, tmp_path / "m.tsv")] == ["text"]


def test_other_encodings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "excel.csv"
    for encoding in ("utf-16-le", "utf-16-be"):
        path.write_bytes("\ufeffpath,text\na.wav,b\n".encode(encoding))
        with pytest.raises(UserError, match=r"excel.csv: the text is UTF-16; expected UTF-8: iconv"):
            read(tmp_path, path)


@pytest.mark.skipif(not COMMON_VOICE.exists(), reason=f"no {COMMON_VOICE}: set ASR_JAX_SHARED to its folder")
def test_real_common_voice(tmp_path: Path) -> None:
    """MP3 at 48 kHz; dev.tsv is the validation set of the folder."""
    train = read(tmp_path, COMMON_VOICE)
    assert train[0].text == '"It just didn\'t seem fair."'
    validation = read(tmp_path, COMMON_VOICE, role="validation")
    assert [utterance.id for utterance in validation] == [f"common_voice_en_2000595{i}.mp3" for i in (4, 5)]
    for utterance in (*train, *validation):
        samples, rate_hz = soundfile.read(utterance.location)
        assert rate_hz == 48000
        assert utterance.duration_s == len(samples) / rate_hz
        assert abs(len(signal(utterance)) - len(samples) / 3) <= 1
    check_conversion(tmp_path, COMMON_VOICE)
