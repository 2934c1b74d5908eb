"""Published models, imported without training: texts and log-probabilities of five recordings equal the peers' own.

Log-probabilities of transducers are those of the joint network at each decision of the peers' greedy search.

scripts/goldens/published.py writes the cases: small random models in the files of their own systems, and what the
systems' own code computes with them.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from support import (
    GOLDENS,
    LIMITS,
    OUTPUTS,
    ROUNDING,
    SHARED,
    assert_outputs,
    assert_within,
    log_softmax,
    relative,
    slow,
    slow_after_first,
)

from asr_jax.audio.io import read_audio, write_flac
from asr_jax.cli import evaluate, export, import_model
from asr_jax.core.batch import Batch, Frames
from asr_jax.heads.transducer import Transducer, TransducerHead
from asr_jax.inference.trained import Trained, load_trained
from asr_jax.models.base import Recogniser
from asr_jax.pretrained.published import read_published

pytestmark = pytest.mark.golden

ROOT = Path(__file__).parents[2]
REFERENCE, SIDE = ROOT / ".venv-reference/bin/python", ROOT / "scripts/goldens/peer_texts.py"
FOLDERS = (Path(__file__).parent / "published", GOLDENS / "published")
TRANSDUCERS = ("hf_parakeet_tdt", "icefall_transducer", "nemo_rnnt", "nemo_tdt")
PARALLEL = ("funasr",)
"""Cases whose decoder finds all labels at once, and has no log-probabilities of frames."""


def kind_of(name: str) -> str:
    """Returns what a case has log-probabilities of: frames, the decisions of a transducer, or labels."""
    return "transducer" if name in TRANSDUCERS else "labels" if name in PARALLEL else "frames"


PATHS = [path for folder in FOLDERS for path in sorted(folder.glob("*.json"))]
CASES = {
    kind: slow_after_first([pytest.param(path, id=path.stem) for path in PATHS if kind_of(path.stem) == kind])
    for kind in ("frames", "transducer", "labels")
}
CASES |= {kind: slow(CASES[kind]) for kind in ("transducer", "labels")}
NAMES = {"transformers": ("huggingface",), "fairseq": ("fairseq", "deeplearningexamples"), "nemo": ("nemo",)}
NAMES |= {
    "funasr": ("funasr",),
    "nvidia": ("deeplearningexamples", "fairseq"),
    "icefall": ("icefall",),
    "icefall_transducer": ("icefall",),
}
TOO_MUCH = 1e-2
"""Relative effect of rounding above which log-probabilities are not compared: frames of a signal whose period is the
hop are equal, and normalisation over time then amplifies their rounding."""
PEERS = {"huggingface": "transformers", "deeplearningexamples": "nvidia"}


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

    @property
    def audio(self) -> list[Path]:
        paths = [SHARED / name for name in self.info["recordings"]]
        if missing := [str(path) for path in paths if not path.is_file()]:
            pytest.skip(f"no recordings {', '.join(missing)}: set ASR_JAX_SHARED to their folder")
        return paths


@cache
def case_of(path: Path) -> Case:
    return Case(path.with_suffix(""), json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", CASES["frames"])
def test_texts_and_log_probabilities_are_the_peers(path: Path, tmp_path: Path) -> None:
    case = case_of(path)
    audio = case.audio
    run, out, manifest, found = (tmp_path / name for name in ("run", "out.safetensors", "five.jsonl", "found.jsonl"))
    import_model.main([str(case.source), "--out", str(run), *case.arguments])
    lines = [{"audio_path": str(name), "text": text} for name, text in zip(audio, case.info["texts"], strict=True)]
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluate.main([str(run), "--data", str(manifest), "--predictions", str(found), "--log-probs", str(out)])
    texts = [json.loads(line)["hypothesis"] for line in found.read_text().splitlines()]
    assert texts == [" ".join(text.split()) for text in case.info["texts"]]
    expected, actual = load_file(case.folder / "expected.safetensors"), load_file(out)
    differences = []
    for number, name in enumerate(audio):
        (log_probs,) = [array for key, array in actual.items() if name.stem in key]
        np.testing.assert_equal(log_probs.shape, expected[str(number)].shape)
        differences.append(relative(log_probs, expected[str(number)]))
    assert_from_samples(differences, run, [read_audio(name) for name in audio])


def assert_from_samples(differences: list[float], run: Path, samples: list[np.ndarray]) -> None:
    """Compares log-probabilities of recordings, if the front-end's rounding has little effect on them.

    The limit is that of outputs and, in addition, the effect of the front-end's rounding.
    """
    is_safe = max(differences) <= LIMITS * OUTPUTS
    effects = [0.0] * len(differences) if is_safe else of_rounding(load_trained(run), samples)
    for number, effect in enumerate(effects):
        if effect <= TOO_MUCH:
            assert_within(differences[number], OUTPUTS + effect, what=f"log-probabilities {number}")
    if left := {number: effect for number, effect in enumerate(effects) if effect > TOO_MUCH}:
        pytest.skip(f"rounding of the features decides the output of some rows, which are not compared: {left}")


@pytest.mark.parametrize("path", CASES["labels"])
def test_texts_and_labels_of_parallel_decoders_are_the_peers(path: Path, tmp_path: Path) -> None:
    case = case_of(path)
    trained, expected = run_of(case, tmp_path / "run"), load_file(case.folder / "expected.safetensors")
    batch = batch_of([read_audio(name) for name in case.audio], [[0]] * len(case.audio))

    def compute(module: Recogniser, batch: Batch) -> Any:
        encoded, name = module.encode(batch, step=None), module.recognising
        settings: Any = trained.experiment.model.heads[name]
        return module.search_in(encoded, head=name, decoding=settings.decoding), module.heads[name].emit(encoded)

    found, frames = jax.device_get(jax.jit(partial(trained.model.apply, method=compute))(trained.variables, batch))
    texts = [trained.tokenizer.decode(found.sequences(number)[0].tokens) for number in range(len(case.audio))]
    assert texts == [" ".join(text.split()) for text in case.info["texts"]]
    rows = [values[:length] for values, length in zip(frames.values, frames.lengths, strict=True)]
    differences = [relative(row, expected[str(number)]) for number, row in enumerate(rows)]
    assert_from_samples(differences, tmp_path / "run", [read_audio(name) for name in case.audio])


def run_of(case: Case, folder: Path) -> Trained:
    """Imports a model to `folder`."""
    import_model.main([str(case.source), "--out", str(folder), *case.arguments])
    return load_trained(folder)


def batch_of(samples: list[np.ndarray], labels: list[list[int]]) -> Batch:
    """Returns a batch of recordings with labels."""
    tokens = np.zeros((len(labels), max(map(len, labels))), np.int32)
    audio = np.zeros((len(samples), max(map(len, samples))), np.int16)
    for number, row in enumerate(labels):
        tokens[number, : len(row)], audio[number, : len(samples[number])] = row, samples[number]
    lengths, num_labels = (np.array([len(row) for row in rows], np.int32) for rows in (samples, labels))
    rows = np.arange(len(labels), dtype=np.int32)
    return Batch(audio, None, lengths, tokens, num_labels, np.ones(len(labels), np.float32), rows)


@pytest.mark.parametrize("path", CASES["transducer"])
def test_decisions_of_transducers_are_the_peers(path: Path, tmp_path: Path) -> None:
    """The joint network along the peer's path, and the greedy search."""
    case = case_of(path)
    samples, trained = [read_audio(name) for name in case.audio], run_of(case, tmp_path / "run")
    model, settings = trained.model, trained.experiment.model.heads[trained.model.recognising]
    assert isinstance(settings, Transducer)
    expected = load_file(case.folder / "expected.safetensors")
    paths = [path_of(expected, str(number), trained.tokenizer.blank_id, settings) for number in range(len(samples))]
    labels = [labels for _, labels in paths]
    assert [trained.tokenizer.decode(row) for row in labels] == [" ".join(text.split()) for text in case.info["texts"]]
    batch = batch_of(samples, labels)

    def compute(module: Recogniser, batch: Batch) -> Any:
        encoded, head = module.encode(batch, step=None), module.heads[module.recognising]
        assert isinstance(head, TransducerHead)
        found = module.search_in(encoded, head=module.recognising, decoding=settings.decoding)
        hidden = head.of_frames(encoded.frames.values)[:, :, None]
        hidden += head.of_labels(head.prediction(batch.tokens, batch.token_lengths, step=None))[:, None]
        return found, head.output(jnp.maximum(hidden, 0) if settings.activation == "relu" else jnp.tanh(hidden))

    found, logits = jax.device_get(jax.jit(partial(model.apply, method=compute))(trained.variables, batch))
    size = trained.tokenizer.vocab_size
    for number, (places, row) in enumerate(paths):
        assert list(found.sequences(number)[0].tokens) == row
        joint = logits[number][tuple(np.transpose(places))]
        parts = {str(number): joint[:, :size]} | (
            {f"{number}.durations": joint[:, size:]} if settings.durations else {}
        )
        for name, part in parts.items():
            assert_outputs(log_softmax(part), expected[name], what=f"log-probabilities {name}")


def path_of(
    expected: dict[str, Any], name: str, blank: int, settings: Transducer
) -> tuple[list[tuple[int, int]], list[int]]:
    """Returns the frame and the label position of each decision of a peer's greedy search, and the labels it found."""
    places, labels, frame, at_frame = list[tuple[int, int]](), list[int](), 0, 0
    for number, row in enumerate(expected[name]):
        places.append((frame, len(labels)))
        label, is_blank = int(row.argmax()), int(row.argmax()) == blank
        jump = settings.durations[expected[f"{name}.durations"][number].argmax()] if settings.durations else 0
        if not is_blank:
            labels.append(label)
        at_frame += 1
        jump = max(jump, int(is_blank or at_frame >= settings.decoding.max_symbols))
        frame, at_frame = frame + jump, 0 if jump else at_frame
    return places, labels


def folders() -> list[Any]:
    """Folders of Hugging Face with waveforms and logits."""
    paths = sorted(path.parent for path in GOLDENS.glob("hf_w*/*/expected.safetensors"))
    return [pytest.param(path, id=f"{path.parent.name}-{path.name}") for path in paths if is_with_ctc(path)]


def is_with_ctc(folder: Path) -> bool:
    return "ForCTC" in json.loads((folder / "config.json").read_text())["architectures"][0]


@pytest.mark.slow
@pytest.mark.parametrize("folder", folders())
def test_folders_with_logits(folder: Path, tmp_path: Path) -> None:
    """From waveforms to log-probabilities. Rows of the peer's batch that depend on their padding are not compared."""
    config, arrays = json.loads((folder / "config.json").read_text()), load_file(folder / "expected.safetensors")
    waves = arrays.get("input/waveform", arrays.get("input/waveform_raw"))
    lengths, logits = arrays["input/waveform_lengths"], arrays.get("out/logits", arrays.get("out_masked/logits"))
    enters = config.get("feat_extract_norm") == "group" or config.get("add_adapter")
    rows = [row for row in range(len(waves)) if not enters or arrays["input/attention_mask"][row].all()]
    if not rows:
        pytest.skip("all rows have padding, which enters the output")
    manifest = tmp_path / "m.jsonl"
    with manifest.open("w") as file:
        for row in rows:
            samples = waves[row, : lengths[row]] * 32768
            np.testing.assert_array_equal(samples, np.rint(samples))
            write_flac(tmp_path / f"{row}.flac", samples.astype(np.int16), 16000)
            file.write(json.dumps({"audio_path": f"{row}.flac", "text": "a", "id": str(row)}) + "\n")
    import_model.main([str(folder), "--out", str(tmp_path / "run")])
    given = [str(tmp_path / "run"), "--data", str(manifest), "--log-probs", str(tmp_path / "found.safetensors")]
    evaluate.main(given)
    found = load_file(tmp_path / "found.safetensors")
    differences = []
    for row in rows:
        expected = log_softmax(logits[row])
        assert len(found[str(row)]) <= len(expected)
        differences.append(relative(found[str(row)], expected[: len(found[str(row)])]))
    assert_from_samples(differences, tmp_path / "run", [waves[row, : lengths[row]] * 32768 for row in rows])


def of_rounding(trained: Trained, samples: list[np.ndarray]) -> list[float]:
    """Returns differences of log-probabilities, relative to the largest of each row, that rounding of features causes.

    A Fourier transform in float32 has the error of an exact one whose samples have noise. Its 36 roundings
    (`test_front_ends.py`) add up to a standard deviation between 3.5 (the square root of 36 / 3, if they are
    independent) and 36 roundings; the noise has 16. Features of bins without energy are logarithms of this noise. The
    result is the largest of four draws.
    """
    front_end, name = trained.model.front_end, trained.model.recognising
    batch = batch_of([row.astype(np.int16) for row in samples], [[0]] * len(samples))
    noise = np.random.default_rng(0).normal(0, 16 * ROUNDING, (5, *batch.audio.shape))
    noise[0] = 0

    def emit(module: Recogniser, batch: Batch) -> Frames:
        return module.heads[name].emit(module.encode(batch, step=None))

    @jax.jit
    def compute(audio: Any, batch: Batch) -> Frames:
        frames = front_end(audio, batch.lengths)
        given = batch.replace(audio=None, features=frames.values, lengths=frames.lengths)
        return trained.model.apply(trained.variables, given, method=emit)

    exact, *others = jax.device_get([compute(np.float32(batch.audio * (1 + drawn)), batch) for drawn in noise])
    return [
        max(relative(other.values[row, :count], exact.values[row, :count]) for other in others)
        for row, count in enumerate(exact.lengths)
    ]


def exports() -> list[Any]:
    """The cases with each system for which `export` writes a complete model."""
    pairs = [(path, name) for path in PATHS for name in NAMES.get(case_of(path).info["system"], ())]
    without = {("hf_parakeet", "huggingface"), ("nvidia_hourglass", "fairseq")}
    return [
        pytest.param(path, name, id=f"{path.stem}-{name}") for path, name in pairs if (path.stem, name) not in without
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "names"), exports())
def test_the_systems_own_code_loads_what_export_writes(path: Path, names: str, tmp_path: Path) -> None:
    """The peer's texts and log-probabilities, from the written model alone, are those of the original model."""
    if not REFERENCE.exists():
        pytest.skip("no environment of scripts/setup_reference.sh")
    case, out = (
        case_of(path),
        tmp_path / {"huggingface": "out", "funasr": "out", "nemo": "out.nemo"}.get(names, "out.pt"),
    )
    audio, peer, written = case.audio, PEERS.get(names, names), out
    if path.stem in TRANSDUCERS:
        peer = case.info["system"]
        if names == "huggingface":  # settings and tokenizer cannot be written
            shutil.copytree(case.folder, out, ignore=shutil.ignore_patterns("*.safetensors"))
            written = out / "model.safetensors"
    import_model.main([str(case.source), "--out", str(tmp_path / "run"), *case.arguments])
    like = ["--like", str(case.source)] if names == "nemo" else []
    export.main([str(tmp_path / "run"), "--to", names, "--out", str(written), *like])
    for file in ("model.json", "bpe.model"):  # settings and tokenizer that icefall reads from files beside a checkpoint
        if names == "icefall":
            shutil.copy(case.folder / file, out.with_name(file.replace("model.json", "out.json")))
    given = [REFERENCE, SIDE, peer, out, tmp_path / "found.safetensors", *audio]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    if "No module named" in done.stderr or "No such file or directory" in done.stderr:
        pytest.skip(f"no sources of scripts/setup_reference.sh --peers: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    texts, expected = json.loads(done.stdout.splitlines()[-1]), load_file(case.folder / "expected.safetensors")
    ours = read_published(case.source).tokenizer
    if case.info["system"] == peer:
        assert [" ".join(text.split()) for text in texts] == [" ".join(text.split()) for text in case.info["texts"]]
    found = load_file(tmp_path / "found.safetensors")
    for number, log_probs in expected.items():
        assert_outputs(found[number][:, : ours.vocab_size], log_probs, what=f"log-probabilities {number}")
