"""The report command: its inputs, what the page contains, and what it refuses."""

import json
import math
import re
import sys
import time
from html.parser import HTMLParser

import pytest

from asr_jax.cli.report import main
from asr_jax.core.errors import UserError
from asr_jax.metrics.comparison import compare
from asr_jax.metrics.scoring import score
from asr_jax.reporting.predictions import read_predictions
from tests.reporting.made import predictions, recording, run
from tests.support import assert_within

pytest.importorskip("jinja2", reason="needs the extra report")

HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)> & \" ' \u2028 \x07 \ud800 {{ 7 * 7 }}"


class Page(HTMLParser):
    """Elements of a page with their attributes and texts. Elements that are not closed, or in a wrong order, fail."""

    VOID = ("meta", "img", "input", "br")

    def __init__(self, html):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(text for tag, text in self.texts if tag not in ("script", "style")).split())

    @property
    def data(self):
        return json.loads(next(text for tag, text in self.texts if tag == "script"))


def written(folder, *arguments):
    out = folder / "report.html"
    main([*map(str, arguments), "--out", str(out)])
    return Page(out.read_text(encoding="utf-8"))


def percent(share):
    return f"{100 * share:.2f} %"


def test_one_file(tmp_path, capsys):
    path = predictions(tmp_path / "a.jsonl", 0.2)
    page = written(tmp_path, path)
    assert "report.html: 0." in capsys.readouterr().out
    expected = score(read_predictions(path).recognised, normaliser="lower.v1")
    low, high = (100 * bound for bound in expected["wer_interval"])
    assert f"{percent(expected['wer'])} WER, interval {low:.1f}–{high:.1f} %" in page.text
    for by in ("by_source", "by_speaker", "by_length"):
        for name, row in expected[by].items():
            assert f"{name} {row['utterances']} {row['words']} {percent(row['wer'])}" in page.text
    assert "second best -3.25" in page.text
    assert "head ctc, beam 4" in page.text
    assert "calibration error" in page.text
    assert not page.all("audio")
    assert page.text.count("No recording:") == 20
    columns = {each["name"]: values for each, values in zip(page.data["columns"], page.data["values"], strict=True)}
    assert sum(columns["Errors"]) == expected["substitutions"] + expected["deletions"] + expected["insertions"]
    assert len(columns["Reference"]) == 60
    assert "Confidence (%)" not in columns  # all are equal


def test_nothing_is_fetched(tmp_path):
    page = written(tmp_path, predictions(tmp_path / "a.jsonl", 0.2), run(tmp_path / "run"))
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "action", "poster"):
                assert value.startswith(("data:", "#")), (tag, name, value[:80])
    [policy] = [each["content"] for each in page.all("meta") if "http-equiv" in each]
    assert policy.startswith("default-src 'none'; img-src data:;")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)


def test_hostile_texts_are_texts(tmp_path):
    texts = dict.fromkeys(("hypothesis", "source", "speaker", "set", "location", "head", "decoding"), HOSTILE)
    texts |= {"words": [{"text": HOSTILE, "confidence": 0.4}], "n_best": [{"text": HOSTILE}] * 2, "reference": "a b"}
    rows = [{"id": f"{row} {HOSTILE}", "duration_s": math.inf} | texts for row in range(3)]
    path = tmp_path / "<script>alert(3).jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    page = written(tmp_path, path, "--normaliser", "none")
    assert len(page.all("script")) == 2
    assert not [each for each in page.all("img") if each["src"] == "x"]
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    columns = {each["name"]: values for each, values in zip(page.data["columns"], page.data["values"], strict=True)}
    assert columns["Hypothesis"] == [HOSTILE] * 3
    assert "49" not in columns["Id"][0]
    assert "</script><script>alert(1)</script>" in page.text


def test_recordings_are_embedded_up_to_a_size(tmp_path):
    for row in range(20):
        recording(tmp_path / f"{row}.flac")
    path = predictions(tmp_path / "a.jsonl", 0.5, num=20)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["location"] = str(tmp_path / line["location"])
    lines[0]["location"] = str(tmp_path / "absent.flac")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = written(tmp_path, path, "--worst", "20")
    assert len(page.all("audio")) == len([each for each in page.all("img") if "Spectrogram" in each["alt"]]) > 13
    assert page.text.count("No recording:") == 1
    assert "absent.flac: no such file" in page.text
    size = sum(len(each["src"]) for each in page.all("audio"))
    few = written(tmp_path, path, "--worst", "20", "--audio-mb", f"{size / 2e6}")
    assert 0 < len(few.all("audio")) < len(page.all("audio"))
    assert sum(len(each["src"]) for each in few.all("audio") + few.all("img")) <= size / 2
    assert "which --audio-mb sets" in few.text


def test_recordings_are_found_in_manifests(tmp_path):
    path = predictions(tmp_path / "a.jsonl", 1.0, num=2, location="/absent/a.flac")
    manifest = tmp_path / "m.jsonl"
    recording(tmp_path / "sound.flac")
    lines = [{"id": f"u{row}", "audio_path": "sound.flac", "text": "a", "duration": 1.0} for row in range(2)]
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(written(tmp_path, path, "--data", manifest).all("audio")) == 2


def test_two_files_are_compared(tmp_path):
    paths = [predictions(tmp_path / f"{name}.jsonl", rate, seed=seed)
             for seed, (name, rate) in enumerate((("a", 0.3), ("b", 0.1)))]  # fmt: skip
    page = written(tmp_path, *paths)
    expected = compare(*(read_predictions(path).recognised for path in paths), normaliser="lower.v1")
    difference = f"{100 * expected['difference']['wer']:+.2f}".replace("-", "−")
    assert f"Difference, B less A {difference} points" in page.text
    assert f"p = {expected['matched_pairs']['p_value']:.2g} by matched pairs" in page.text
    columns = {each["name"]: values for each, values in zip(page.data["columns"], page.data["values"], strict=True)}
    gained = [b - a for a, b in zip(columns["Errors A"], columns["Errors B"], strict=True)]
    assert columns["B less A"] == gained


def test_runs_have_curves_and_their_predictions(tmp_path, capsys):
    first, second = run(tmp_path / "first"), run(tmp_path / "second")
    page = written(tmp_path, first, second)
    assert [each["aria-label"][:30] for each in page.all("div") if "Curves" in each.get("aria-label", "")] == [
        "Curves of first and second by "
    ]
    assert "first second" in page.text  # the legend of the chart that has both
    assert "Error rates" not in page.text
    assert f"evaluate {first} --data MANIFEST --predictions {first / 'predictions.jsonl'}" in capsys.readouterr().out
    predictions(first / "predictions.jsonl", 0.2)
    predictions(second / "predictions.jsonl", 0.2, seed=3)
    page = written(tmp_path, first, second)
    assert "A first" in page.text
    assert "B second" in page.text
    assert page.text.index("Error rates") < page.text.index("Training")


def test_names_tell_the_inputs_apart(tmp_path):
    own, other = predictions(tmp_path / "a" / "predictions.jsonl", 0.2), predictions(tmp_path / "a.jsonl", 0.2)
    assert f"B {other}" in written(tmp_path, own, other).text
    other = predictions(tmp_path / "b" / "predictions.jsonl", 0.2)
    assert "a and b Error rates" in written(tmp_path, own, other).text
    other = predictions(tmp_path / "b" / "a.jsonl", 0.2)
    text = written(tmp_path, own, other).text
    assert f"A {tmp_path.name}/a " in text
    assert "B b/a " in text


@pytest.mark.slow
def test_ten_thousand_utterances(tmp_path):
    path = predictions(tmp_path / "a.jsonl", 0.1, num=10_000, num_words=12)
    start_s = time.monotonic()
    page = written(tmp_path, path)
    assert_within(time.monotonic() - start_s, 60, what="seconds to write a report")
    assert_within((tmp_path / "report.html").stat().st_size, 8e6, what="bytes of a report")
    assert len(page.data["values"][0]) == 10_000
    assert len(page.elements) < 15_000


def test_wrong_inputs_are_refused(tmp_path, monkeypatch):
    path, of_run = predictions(tmp_path / "a.jsonl", 0.2), run(tmp_path / "run")
    others = [predictions(tmp_path / f"{name}.jsonl", 0.2) for name in "bc"]
    (tmp_path / "folder").mkdir()
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    for arguments, message in (
        ([tmp_path / "folder"], "expected the folder of a run"),
        ([tmp_path / "absent.jsonl"], "absent.jsonl cannot be read"),
        ([path, path], "given twice"),
        (
            [path, *others],
            "0 runs and 3 files of predictions: .* at most two runs and two files",
        ),
        ([empty], "empty.jsonl has no predictions"),
        ([path, empty], "empty.jsonl has no predictions"),
        ([of_run / "events.jsonl"], "is not a prediction"),
        ([path, "--out", path], re.escape(str(path))),
        ([path, "--normaliser", "lower.v9"], "lower.v9"),
    ):
        with pytest.raises(UserError, match=message):
            main([*map(str, arguments), *(["--out", str(tmp_path / "r.html")] if "--out" not in arguments else [])])
    assert not (tmp_path / "r.html").exists()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "asr_jax.reporting.page", raising=False)
    with pytest.raises(UserError, match=r"the report needs jinja2: ASR_JAX_EXTRAS=report "):
        main([str(path), "--out", str(tmp_path / "r.html")])


def test_lines_of_other_systems(tmp_path):
    lines = [
        {"id": "a", "reference": "hello world", "hypothesis": "hello word"},
        {"id": "b", "reference": "", "hypothesis": ""},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    main([str(tmp_path / "a.jsonl"), "--normaliser", "lower.v1", "--out", str(tmp_path / "a.html")])
    text = (tmp_path / "a.html").read_text()
    assert "50.00 %" in text
    assert "nan" not in text
