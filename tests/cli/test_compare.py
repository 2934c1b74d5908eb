"""The compare command: its output, its JSON file, and the files that it refuses."""

import json
import random
import re

import pytest

from asr_jax.cli.command_line import run_command
from asr_jax.cli.compare import main
from asr_jax.core.errors import UserError
from asr_jax.metrics.comparison import compare
from asr_jax.reporting.predictions import read_predictions


def predictions(path, error_rate, *, seed=0, num=120, **fields):
    """Writes a file of predictions like evaluate."""
    choose = random.Random(seed)
    rows = []
    for row in range(num):
        reference = [choose.choice(["Some", "words", "of", "an", "utterance"]) for _ in range(8)]
        hypothesis = " ".join("wrong" if choose.random() < error_rate else word for word in reference)
        rows.append({
            "id": f"u{row}", "location": f"/{row}.flac",
            "reference": " ".join(reference), "hypothesis": hypothesis.lower(),
            "source": "made", "speaker": f"s{row % 8}", "duration_s": row / 8, "normaliser": "lower.v1",
        } | fields)  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rewritten(path, change):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in change(rows)))


def test_it_prints_both_and_how_they_differ(tmp_path, capsys):
    first = predictions(tmp_path / "a.jsonl", 0.2)
    second = tmp_path / "b.jsonl"
    second.write_text(first.read_text())
    rewritten(second, lambda rows: [row | {"hypothesis": row["reference"]} for row in rows[:-2]])
    out = tmp_path / "made" / "compared.json"
    main([str(first), str(second), "--json", str(out), "--show", "2"])
    written = json.loads(out.read_text())
    systems = [read_predictions(path).recognised for path in (first, second)]
    expected = compare(*systems, normaliser="lower.v1", num_shown=2)
    assert written == {"files": [str(first), str(second)]} | json.loads(json.dumps(expected))
    output = capsys.readouterr().out
    difference, pairs, worst = expected["difference"], expected["matched_pairs"], expected["differing"][0]
    of_difference = [f"{100 * value:+.2f}" for value in (difference["wer"], *difference["wer_interval"])]
    for values in (
        ["118 utterances", "lower.v1"],
        [*of_difference, "95 %", "1000 resamples", "8 speakers", "100.00 %"],
        [f"p = {pairs['p_value']:.2g}", f"{pairs['segments']} segments"],
        [str(first), "2 utterances", "u118", "u119"],
        [worst["id"], f"{worst['first_errors']} errors", "0 of the second"],
    ):
        assert re.search(".*".join(map(re.escape, values)), output), values
    assert len(re.findall(r"^.*u\d+: \d+ errors", output, re.MULTILINE)) == 2
    assert "  hyp " in output


def test_sets_that_share_ids_are_distinguished(tmp_path, capsys):
    files = []
    for name, rates in (("a", (0.1, 0.5)), ("b", (0.5, 0.1))):
        parts = [
            predictions(tmp_path / f"{name}{seed}.jsonl", rate, seed=seed, set=f"set{seed}")
            for seed, rate in enumerate(rates)
        ]
        files.append(tmp_path / f"{name}.jsonl")
        files[-1].write_text("".join(part.read_text() for part in parts))
    main([str(file) for file in files])
    output = capsys.readouterr().out
    assert "240 utterances in both files" in output
    assert re.search(r"set[01] u\d+: \d errors of the first system, \d of the second", output)


def test_equal_systems_have_nothing_to_show(tmp_path, capsys):
    same = [str(predictions(tmp_path / f"{name}.jsonl", 0.1)) for name in "ab"]
    main(same)
    output = capsys.readouterr().out
    assert "difference, second minus first: +0.00 points (+0.00 to +0.00" in output
    assert "matched pairs (MAPSSWE): p = 1," in output
    assert "largest difference" not in output


def test_differences_without_interval_or_p_value_are_said(tmp_path, capsys):
    lines = [{"id": str(n), "reference": "a b c d", "normaliser": "none"} for n in range(30)]
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for path, hypothesis in zip(files, ("a b c d", "a b x d"), strict=True):
        path.write_text("".join(json.dumps(line | {"hypothesis": hypothesis}) + "\n" for line in lines))
    main([*map(str, files)])
    assert "no p-value: the difference is the same in all segments" in " ".join(capsys.readouterr().out.split())
    for path in files:
        path.write_text(path.read_text().splitlines()[0] + "\n")
    main([*map(str, files)])
    output = " ".join(capsys.readouterr().out.split())
    assert "difference, second minus first: +25.00 points; no interval, since there are only 1" in output
    assert "no p-value: too few segments" in output


def test_files_without_the_optional_fields(tmp_path, capsys):
    path = tmp_path / "plain.jsonl"
    path.write_text(
        '{"id": 1, "reference": "A b", "hypothesis": "a"}\n\n{"id": 2, "reference": "c", "hypothesis": "c"}\n'
    )
    with pytest.raises(UserError, match=f"{path}: none.*--normaliser NAME"):
        main([str(path), str(path)])
    main([str(path), str(path), "--normaliser", "lower.v1"])
    output = capsys.readouterr().out
    assert "33.33 %" in output
    assert "resamples of 2 utterances" in output
    assert "1 segments with an error of either system; p is inaccurate for fewer than 50 segments" in output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [row | {"id": row["id"] + "x"} for row in rows], "no utterance is in both systems"),
        (lambda rows: [row | {"reference": "other"} for row in rows], "120 of 120 references are not the same"),
        (lambda rows: rows + rows[:1], "utterance u0 comes twice in the second system"),
        (lambda rows: [row | {"normaliser": "none"} for row in rows], "a.jsonl: lower.v1; .*b.jsonl: none"),
        (lambda rows: [*rows[:1], {"id": "u1", "reference": "a"}], "b.jsonl:2: .*KeyError: 'hypothesis'"),
        (lambda rows: [*rows, ["u1"]], "b.jsonl:121: .* is not a prediction"),
        (lambda rows: [row | {"duration_s": "long"} for row in rows], "b.jsonl:1: .*could not convert string to float"),
        (lambda _: [], "b.jsonl has no predictions"),
    ],
)
def test_files_that_do_not_match_are_refused(tmp_path, capsys, change, message):
    first, second = (predictions(tmp_path / f"{name}.jsonl", 0.1) for name in "ab")
    rewritten(second, change)
    with pytest.raises(SystemExit) as ended:
        run_command(main, [str(first), str(second)])
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert not output.out
    assert re.search(message, output.err)
    assert str(second) in output.err


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_separators_in_texts_end_no_line(tmp_path, start, end):
    text = "a\x85b\u2028c\u2029d\x7f"
    rows = [{"id": text, "reference": text, "hypothesis": text} for _ in range(2)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + end for row in rows)
    (tmp_path / "a.jsonl").write_bytes((start + lines).encode())
    found = read_predictions(tmp_path / "a.jsonl").recognised
    assert [(each.id, each.reference, each.hypothesis) for each in found] == [(text,) * 3] * 2


def test_files_that_cannot_be_read(tmp_path):
    good = predictions(tmp_path / "a.jsonl", 0.1)
    binary = tmp_path / "b.jsonl"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "gone.jsonl", tmp_path, binary):
        with pytest.raises(UserError, match=r"cannot be read.*evaluate --predictions"):
            main([str(good), str(path)])
    with pytest.raises(UserError, match="show is -1: expected at least 0"):
        main([str(good), str(good), "--show", "-1"])
    with pytest.raises(UserError, match=r"'lower\.v2'"):
        main([str(good), str(good), "--normaliser", "lower.v2"])
