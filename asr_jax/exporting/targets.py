"""Files of a recogniser for other programs, which are compared with the recogniser after they are written."""

import importlib.util
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
from jaxtyping import Int16

from asr_jax.audio.errors import AudioError
from asr_jax.audio.io import read_audio
from asr_jax.core.errors import RunError, UserError, nearest
from asr_jax.core.files import write_whole
from asr_jax.core.installation import installing
from asr_jax.core.paths import at_home
from asr_jax.core.pytrees import Tree
from asr_jax.core.text_files import json_text
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.exporting.parts import File, Part, Parts, WeightType
from asr_jax.exporting.windows import feature_windows, long_enough, streaming_parts
from asr_jax.inference.shared_folders import FOLDERS, OURS, write_model
from asr_jax.inference.trained import Trained
from asr_jax.models.base import Model
from asr_jax.pretrained.formats import FORMATS as WEIGHT_FORMATS

LARGEST = 1e-2
"""Largest difference of outputs of files with weights in float32; above it, the export fails."""
RELATIVE = {"f16": 5e-3, "int8": 0.1}
"""Largest relative difference of outputs by the type of the weights; above it, the export fails. Of four trained
models on 10 recordings, it is at most 4.4e-4 in f16 and 0.027 in int8. With a quantised front-end, by which texts are
lost, it is at least 0.22."""
TINY = 1e-6
"""Added to standard deviations, because some outputs are constant."""
IMPOSSIBLE = -1e3
"""Values below it are log-probabilities of impossible labels, which do not count in standard deviations."""
WEIGHTS = ("safetensors", *dict.fromkeys(each.names for each in WEIGHT_FORMATS))
"""Formats of weights: this package's own format, and the formats of other systems."""
PROGRAMS = ("onnx", "sherpa-onnx", "stablehlo")
"""Formats of folders with programs."""
FORMATS = (*PROGRAMS, *WEIGHTS)
PLATFORMS = ("cpu", "cuda", "tpu")
"""Platforms of the programs in the format stablehlo."""
NOISE_DB = -26.0
"""Level of the noise that stands for a recording, in dB of full scale."""


@dataclass(frozen=True)
class Compared:
    """Comparison of an output of a file with that of the recogniser."""

    difference: float
    """Largest absolute difference."""
    relative: float
    """Root mean square of the differences, relative to the standard deviation of the output."""
    same_best: float
    """Share of frames with the same best label."""


def export(
    trained: Trained,
    out: Path,
    *,
    to: str,
    head: str = "",
    weights: Sequence[str] = ("f32",),
    recording: str = "",
    like: Path | None = None,
    streaming: bool = False,
) -> Iterator[str]:
    """Writes a run for another program, and yields lines that describe what was written.

    Args:
        out: Folder or file to write, which must not exist.
        to: Format, one of `PROGRAMS` or `WEIGHTS`.
        head: Name of the head. Empty: the primary head; for formats of weights, all heads.
        weights: Types of weights of ONNX files, each in a file of its own: f32, f16, int8.
        recording: Audio file that the files are tried with. Empty: one of the run's validation or training set, or
            noise if there is none.
        like: `.nemo` file from which everything except the weights is copied, for the format nemo.
        streaming: Whether the files read windows, with the state of the encoder as inputs and outputs.

    Raises:
        UserError: If the format does not have the model, or an option does not belong to the format.
        RunError: If a file has other outputs than the recogniser.
    """
    given = {"weights": tuple(weights) != ("f32",), "recording": recording, "head": head, "streaming": streaming}
    _check_out(out, to)
    _check_used(to, {name for name, value in {**given, "like": like}.items() if value})
    _check_model(trained, to, head, weights)
    if to in WEIGHTS:
        names = OURS if to == "safetensors" else to
        if names == OURS and out.suffix != ".safetensors":
            raise UserError(f"{out}: expected a name that ends in .safetensors")
        variables, model = _of_head(trained, head)
        try:
            write_model(variables, model, trained.tokenizer, names=names, out=out, like=like)
        except UserError as error:
            if len(model.heads) == 1 or "/heads_" not in str(error):
                raise
            raise UserError(f"{error}; --head NAME writes one head without the others") from error
        blank = f"label {trained.tokenizer.blank_id} of {trained.tokenizer.vocab_size} is the blank"
        yield f"{out}: the {trained.weights} weights of checkpoint {trained.updates} in the format {to}; {blank}"
        return
    samples, about = _recording(trained, recording)
    yield f"tried with {about}"
    parts = Parts(trained.model, trained.variables, head or trained.model.recognising, samples)
    parts = long_enough(parts) if streaming else parts
    types: Sequence[Any] = tuple(dict.fromkeys(weights))
    with _whole_folder(out) as folder:
        if to == "sherpa-onnx":
            yield from _sherpa(trained, parts, folder, types, streaming=streaming)
            _describe(trained, parts, folder)
            return
        made = streaming_parts(parts) if streaming else list(parts)
        for part in made:
            if to == "stablehlo":
                yield _stablehlo(part, folder)
            else:
                yield from write_part(part, folder, ["f32"] if part.name == "features" else types, metadata={})
        more = {"parts": _arrays(made)} | ({"window": _window(parts)} if streaming else {})
        _describe(trained, parts, folder, more)


def _of_head(trained: Trained, head: str) -> tuple[Tree, Model]:
    """Returns the variables and the settings of a model without other heads than `head` and those that it reads.

    If `head` is empty, all heads are kept.
    """
    model = trained.experiment.model
    if not head:
        return trained.variables, model
    heads = {name: model.heads[name] for name in (head, *model.heads[head].reads)}
    others = {f"heads_{name}" for name in model.heads if name not in heads}
    variables = {
        kind: {path: leaves for path, leaves in tree.items() if path not in others}
        for kind, tree in trained.variables.items()
    }
    return variables, replace(model, heads=heads, primary=head if model.heads[head].recognises else "")


def _check_out(out: Path, to: str) -> None:
    if to not in FORMATS:
        files = ", ".join(each for each in WEIGHTS if each not in FOLDERS)
        raise UserError(
            f"format {to!r}: expected one of {', '.join(PROGRAMS)} (folders), {files} (files), {', '.join(FOLDERS)} "
            f"(either){nearest(to, FORMATS)}"
        )
    if out.exists():
        raise UserError(f"{out} already exists: choose another name, or delete it")
    above = next(each for each in out.absolute().parents if each.exists())
    if not above.is_dir():
        raise UserError(f"{out}: {above} is not a folder; choose a path in a folder")


def _check_model(trained: Trained, to: str, head: str, weights: Sequence[str]) -> None:
    if isinstance(weights, str):
        raise UserError(f"weights is {weights!r}: expected a list, such as [{weights!r}]")
    if not weights or {*weights} - {*get_args(WeightType)}:
        raise UserError(f"weights is {weights!r}: expected some of {', '.join(get_args(WeightType))}")
    heads = trained.model.heads
    if head and head not in heads:
        raise UserError(f"--head {head}: expected one of {', '.join(heads)}{nearest(head, heads)}")
    if to not in (*WEIGHTS, "stablehlo") and not (
        importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx")
    ):
        raise UserError(f"--to {to} needs onnx and onnxruntime: {installing('onnx')}")
    if to not in WEIGHTS and trained.experiment.training.precision != "f32":
        raise UserError(
            f"the run computes in {trained.experiment.training.precision}, and files compute in f32: load it with "
            'precision="f32"'
        )


def _check_used(to: str, given: Set[str]) -> None:
    """Checks that a format uses all options that were given."""
    of_programs = {"recording", "head", "streaming"}
    of_onnx = {*of_programs, "weights"}
    used = {"stablehlo": of_programs, "onnx": of_onnx, "sherpa-onnx": of_onnx, "nemo": {"like", "head"}}
    if others := sorted(given - used.get(to, {"head"})):
        raise UserError(f"--{others[0]} is given, which --to {to} does not use: remove it")


@contextmanager
def _whole_folder(out: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `out`, which gets the name `out` if no error occurs.

    Raises:
        RunError: If a file cannot be written, as on a full disk.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.", dir=out.parent) as temporary:
        folder = Path(temporary) / out.name
        folder.mkdir()
        try:
            yield folder
        except OSError as error:  # which names the temporary folder
            raise RunError(f"{out} cannot be written: {error.strerror or error}; nothing is kept") from error
        shutil.move(folder, out)


def _recording(trained: Trained, path: str) -> tuple[Int16[np.ndarray, " S"], str]:
    """Returns the recording that files are tried with, and its description."""
    rate_hz, data, least = trained.model.front_end.rate_hz, trained.experiment.data, trained.model.fewest_inputs()
    if path:
        try:
            samples = read_audio(at_home(path), rate_hz=rate_hz)
        except AudioError as error:
            raise UserError(f"--recording {path}: {error.reason}: expected an audio file") from error
        if len(samples) < least or not samples.std():
            raise UserError(
                f"--recording {path} has {len(samples)} samples and a standard deviation of {samples.std():.3g}: "
                f"expected speech of at least {least} samples"
            )
        return samples, path
    for source in (*data.validation, *data.train):
        with suppress(UserError, AudioError, OSError):
            location = Location.parse(read_utterances([source], role="validation")[0].location)
            samples = location.audio(rate_hz=rate_hz) if location.shape is None else np.zeros(0, np.int16)
            if len(samples) >= least and samples.std():
                return samples, f"{location}"
    noise = np.random.default_rng(0).normal(size=3 * rate_hz) * 32767 * 10 ** (NOISE_DB / 20)
    return np.clip(noise, -32767, 32767).astype(np.int16), "noise of 3 s, because no recording was found"


def _stablehlo(part: Part, folder: Path) -> str:
    """Writes a program of `jax.export` for all sizes, which runs with JAX alone on CPUs, GPUs and TPUs."""
    path = folder / f"{part.name}.stablehlo"
    with jax.default_matmul_precision("highest"):
        exported = jax.export.export(jax.jit(part.function), platforms=PLATFORMS)(**part.inputs)
    write_whole(path, bytes(exported.serialize()))
    call = jax.jit(jax.export.deserialize(bytearray(path.read_bytes())).call)

    def file(**inputs: Any) -> Sequence[Any]:
        found = call(**inputs)
        return found if isinstance(found, tuple) else [found]

    return _checked(path, part, file)


def _sherpa(
    trained: Trained, parts: Parts, folder: Path, weights: Sequence[WeightType], *, streaming: bool
) -> Iterator[str]:
    from asr_jax.exporting.onnx_files import file_name
    from asr_jax.exporting.sherpa import kind_of, tokens_file
    from asr_jax.exporting.sherpa_streaming import streaming_kind_of

    kind = streaming_kind_of(parts, trained.tokenizer) if streaming else kind_of(parts, trained.tokenizer)
    written = []
    for part in kind.parts:
        # An embedding is not quantised, and a quantised joint network changes more words than it saves memory.
        chosen: Sequence[WeightType] = weights if part.name in ("model", "encoder") else ["f32"]
        written.append((part.name, file_name(part.name, chosen[0])))
        yield from write_part(part, folder, chosen, metadata=kind.metadata.get(part.name, {}), lengths=kind.lengths)
    write_whole(folder / "tokens.txt", tokens_file(kind.tokens))
    shift_s = parts.model.frame_times(tap=parts.model.heads[parts.head].tap).shift_s
    model = "paraformer" if kind.name == "paraformer" else "model"
    files = ", ".join(f'{model if name == "model" else name}="{file}"' for name, file in written)
    recognizer = "OnlineRecognizer" if kind.streams else "OfflineRecognizer"
    yield f'sherpa_onnx.{recognizer}.from_{kind.name}({files}, tokens="tokens.txt")'
    if kind.seconds_of_frame and abs(shift_s - kind.seconds_of_frame) > 1e-6:
        yield f"times of sherpa-onnx are to be multiplied by {shift_s / kind.seconds_of_frame:g}"
    yield from kind.remarks


def write_part(
    part: Part,
    folder: Path,
    weights: Sequence[WeightType],
    *,
    metadata: Mapping[str, Any],
    lengths: Any = np.int64,
) -> Iterator[str]:
    """Writes the ONNX files of a part, compares them with it, and yields a line for each.

    Args:
        lengths: Type of the integers that files take and return.
    """
    from asr_jax.exporting.onnx_files import file_name, open_onnx, write_onnx
    from asr_jax.exporting.to_onnx import to_onnx

    model = to_onnx(part.function, part.inputs, outputs=part.outputs, integers=lengths)
    for kind in weights:
        path = folder / file_name(part.name, kind)
        write_onnx(model, path, metadata=metadata, weights=kind)
        session = open_onnx(path)

        def file(session: Any = session, **inputs: Any) -> Sequence[Any]:
            return session.run(None, {name: _of_type(each, lengths) for name, each in inputs.items()})

        yield _checked(path, part, file, weights=kind)


def _of_type(array: np.ndarray, lengths: Any) -> np.ndarray:
    return array.astype(lengths) if np.issubdtype(array.dtype, np.integer) else array


def _checked(path: Path, part: Part, file: File, *, weights: str = "f32") -> str:
    """Compares a file with the run or its part, and returns a line about its first output.

    Raises:
        RunError: If the outputs differ by more than `LARGEST`, or with rounded weights by more than `RELATIVE`.
    """
    lines = []
    for name, compared in zip(part.outputs, compare(*part.tried(file)), strict=False):
        about = f"largest difference {compared.difference:.1e}"
        if weights == "f32":
            measured, limit, fix = compared.difference, LARGEST, "Please report this with the settings of the run"
        else:
            measured, limit, fix = compared.relative, RELATIVE[weights], f"Leave {weights} out of --weights"
            about += f", relative difference {measured:.1e}"
            if name in ("log_probs", "logits", "logit"):
                about += f", the best label differs in {1 - compared.same_best:.2%} of all frames"
        if not measured <= limit:  # also NaN
            raise RunError(
                f"{path.name}: the output {name} differs from the run's: {about}, expected at most {limit:g}; nothing "
                f"is kept. {fix}"
            )
        lines.append(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {about}")
    return lines[0]


def compare(expected: Sequence[np.ndarray], found: Sequence[Any]) -> list[Compared]:
    """Compares outputs with expected ones. Frames beyond a row's length do not count.

    Args:
        expected: An array; lengths or other arrays.
        found: Outputs of a file, in the same order. A file may lack the lengths.

    Returns:
        Comparison of each output except lengths.
    """
    pairs = [(np.asarray(one), np.asarray(other)) for one, other in zip(expected, found, strict=False)]
    first, lengths = pairs[0][0], np.asarray(expected[1]) if len(expected) > 1 else None
    if any(one.shape != other.shape for one, other in pairs):
        return [Compared(np.inf, np.inf, 0.0)]
    if first.ndim == 3 and lengths is not None and lengths.ndim == 1:
        mask = np.arange(first.shape[1])[None] < lengths[:, None]
        pairs[0] = first[mask], pairs[0][1][mask]
        if len(pairs) > 1 and not np.array_equal(*pairs.pop(1)):
            return [Compared(np.inf, np.inf, 0.0)]
    return [_compared(one, other) for one, other in pairs]


def _compared(expected: np.ndarray, found: np.ndarray) -> Compared:
    if not expected.size:
        return Compared(0.0, 0.0, 1.0)
    one, other = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    difference, spread = np.abs(one - other), one.std(where=one > IMPOSSIBLE) + TINY
    same = one.argmax(-1) == other.argmax(-1)
    return Compared(float(difference.max()), float(np.sqrt(np.mean(difference**2)) / spread), float(same.mean()))


def _describe(trained: Trained, parts: Parts, folder: Path, more: Mapping[str, Any] | None = None) -> None:
    """Writes model.json: what a program needs to know besides the files."""
    head, tokenizer = parts.model.heads[parts.head], trained.tokenizer
    times = parts.model.frame_times(tap=head.tap)
    about = {
        "rate_hz": parts.model.front_end.rate_hz,
        "fewest_samples": parts.model.fewest_inputs(),
        "frame_s": times.shift_s,
        "blank_id": tokenizer.blank_id,
        "dropped_ids": sorted({*getattr(head, "dropped_ids", [tokenizer.blank_id])}),
        "symbols": tokenizer.symbols,
        "tokenizer": tokenizer.kind,
        "checkpoint": trained.updates,
        "weights": trained.weights,
        "head": parts.head,
        **(more or {}),
    }
    write_whole(folder / "model.json", json_text(about, indent=1) + "\n")


def _arrays(made: Iterable[Part]) -> dict[str, Any]:
    """Names and shapes of the inputs of each part, and the names of its outputs."""
    return {
        part.name: {
            "inputs": {name: [*map(str, each.shape)] for name, each in part.inputs.items()},
            "outputs": part.outputs,
        }
        for part in made
    }


def _window(parts: Parts) -> dict[str, Any]:
    """Numbers of the windows of a stream."""
    return {
        **asdict(parts.model.encoder.stream_window),
        "num_samples": feature_windows(parts).num_samples,
        "hop": parts.model.front_end.hop,
        "run_up": parts.model.front_end.run_up,
    }
