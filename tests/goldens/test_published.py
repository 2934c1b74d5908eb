"""Published models, imported without training: texts and log-probabilities of five recordings equal the peers' own.

scripts/goldens/published.py writes the cases: small random models in the files of their own systems, and what the
systems' own code computes with them.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import GOLDENS, SHARED, max_abs, report

from asr_jax.cli import evaluate, import_model

pytestmark = pytest.mark.golden

FOLDERS = (Path(__file__).parent / "published", GOLDENS / "published")
CASES = [pytest.param(path, id=path.stem) for folder in FOLDERS for path in sorted(folder.glob("*.json"))]


@dataclass(frozen=True)
class Case:
    """A model in the files of its own system, and what that system's code recognises."""

    folder: Path
    info: dict[str, Any]

    @property
    def source(self) -> Path:
        return self.folder / self.info["model"]

    @property
    def arguments(self) -> list[str]:
        """Arguments of the import, in which names of the case's files are paths."""
        files = [self.folder / argument for argument in self.info["arguments"]]
        return [
            str(file) if file.is_file() else argument
            for file, argument in zip(files, self.info["arguments"], strict=True)
        ]


@cache
def case_of(path: Path) -> Case:
    return Case(path.with_suffix(""), json.loads(path.read_text()))


@pytest.mark.parametrize("path", CASES)
def test_texts_and_log_probabilities_are_the_peers(path: Path, tmp_path: Path, record_property: Any) -> None:
    case = case_of(path)
    audio = [SHARED / name for name in case.info["recordings"]]
    if missing := [str(name) for name in audio if not name.is_file()]:
        pytest.skip(f"no recordings {', '.join(missing)}: set ASR_JAX_SHARED to their folder")
    import_model.main([str(case.source), "--out", str(tmp_path / "run"), *case.arguments])
    manifest, found = tmp_path / "five.jsonl", tmp_path / "found.jsonl"
    lines = [{"audio_path": str(name), "text": text} for name, text in zip(audio, case.info["texts"], strict=True)]
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    outputs = ["--predictions", str(found), "--log-probs", str(tmp_path / "log_probs.safetensors")]
    evaluate.main([str(tmp_path / "run"), "--data", str(manifest), *outputs])
    texts = [json.loads(line)["hypothesis"] for line in found.read_text().splitlines()]
    assert texts == [" ".join(text.split()) for text in case.info["texts"]]
    expected, actual = load_file(case.folder / "expected.safetensors"), load_file(tmp_path / "log_probs.safetensors")
    differences = []
    for number, name in enumerate(audio):
        (log_probs,) = [array for key, array in actual.items() if name.stem in key]
        np.testing.assert_equal(log_probs.shape, expected[str(number)].shape)
        differences.append(max_abs(log_probs, expected[str(number)]))
    assert report(record_property, "log-probabilities", max(differences)) < 1e-4
