"""Renders the augmentation of training: `python -m asr_jax.augment --config FILE --data IN … --out DIR`.

For some utterances, writes the audio (FLAC) and a picture of the features (PNG) to DIR: first the original, then the
result of each augmentation of FILE. Augmentations are applied one after the other, in the order of training: first
those of audio, then those of features. `drawn.json` contains the random values that were drawn. Every augmentation is
applied, regardless of its probability; the title of the picture states the probability. All flags of training are
accepted, such as `--model.augment.0.db -6 6`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from tyro.conf import arg

from asr_jax.audio.augmentation import AudioAugmentation
from asr_jax.audio.features import FrontEnd
from asr_jax.audio.io import AudioError, write_flac
from asr_jax.audio.sounds import read_sounds
from asr_jax.cli.command_line import parse_with_experiment
from asr_jax.config import Experiment
from asr_jax.core.batch import Frames
from asr_jax.core.devices import say_devices
from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.names import counted
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import NonNegativeInt, PositiveInt, between, command_options
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.reading import read_utterances


@command_options
class AugmentOptions:
    """Options of `asr_jax.augment`; --config FILE defines the front-end and the augmentations."""

    data: Annotated[tuple[UserPath, ...], arg(metavar="IN …")]
    """Manifests, folders or patterns of any supported format."""
    out: Path
    """Folder to write to."""
    num: PositiveInt = 3
    """Number of utterances to render."""
    seed: NonNegativeInt = 0
    """Seed of the random draws."""
    at_update: Annotated[int, between(0, 2**31 - 1)] = 10**9
    """Update at which augmentations that change during training are shown. Default: the end of the run."""


def main(arguments: Sequence[str]) -> None:
    options, experiment = parse_with_experiment(
        AugmentOptions, arguments, prog="python -m asr_jax.augment", about=__doc__
    )
    say_devices()
    written = show(experiment, options)
    print(f"{options.out}: {counted(written, 'utterance')}")


def show(experiment: Experiment, options: AugmentOptions) -> int:
    """Writes pictures and audio of utterances, evenly spaced in the data; returns their number.

    Raises:
        UserError: If no audio can be read, or the data are ready features.
    """
    model, data = experiment.model, experiment.data
    how = ReadOptions(allow_pipes=data.allow_pipes)
    names, rows = _read(options.data, options.num, model.front_end.rate_hz, how)
    lengths = jnp.asarray([len(row) for row in rows], jnp.int32)
    samples = jnp.asarray([np.pad(row, (0, int(lengths.max()) - len(row))) for row in rows], jnp.float32)
    sounds = {
        name: jnp.asarray(array) for name, array in read_sounds(model.augment, rate_hz=model.front_end.rate_hz).items()
    }
    step, key = jnp.int32(options.at_update), jax.random.key(options.seed)
    front_end = jax.jit(model.front_end.before_stacking)  # masks and warps apply to frames before stacking
    stages: list[tuple[str, Any, Frames, Mapping[str, Any]]] = [("original", samples, front_end(samples, lengths), {})]
    for number, augmentation in enumerate(sorted(model.augment, key=lambda it: not isinstance(it, AudioAugmentation))):
        on_audio = isinstance(augmentation, AudioAugmentation)
        frames = stages[-1][2]
        values, sizes = (samples, lengths) if on_audio else (frames.values, frames.lengths)
        drawn = augmentation.drawn(values, sizes, jax.random.fold_in(key, number), step=step)
        drawn |= {"applied": jnp.ones_like(drawn["applied"])}
        changed = augmentation.changed(values, sizes, drawn, front_end=model.front_end, sounds=sounds)
        if on_audio:
            samples = changed
        seen = front_end(samples, lengths) if on_audio else frames.replace(values=changed)
        name = f"{type(augmentation).__name__}, in {augmentation.chance(step):.0%} of the utterances"
        stages.append((name, samples if on_audio else None, seen, jax.device_get(drawn)))
    for row, name in enumerate(names):
        _write(options.out / f"{row}-{name}", stages, row, int(lengths[row]), model.front_end)
    about = {
        "shown": "the result of each augmentation, applied after those before it",
        "not shown": {
            "speeds": list(data.speeds),
            "speed_jitter": data.speed_jitter,
            "dither": model.front_end.dither,
        },
    }
    write_whole(options.out / "about.json", json.dumps(about, indent=1) + "\n")
    return len(names)


def _read(data: Sequence[str], num: int, rate_hz: int, options: ReadOptions) -> tuple[list[str], list[Any]]:
    """Names and samples of utterances, evenly spaced in the data."""
    utterances = read_utterances(list(data), options=options)
    names, rows, reasons = list[str](), list[Any](), list[str]()
    for place in dict.fromkeys(np.linspace(0, len(utterances) - 1, 8 * num).round().astype(int).tolist()):
        if len(rows) == num:
            break
        utterance = utterances[place]
        if utterance.num_frames:
            raise UserError(f"{', '.join(data)}: {utterance.id} has ready features; expected data with audio")
        try:
            rows.append(Location.parse(utterance.location).audio(rate_hz=rate_hz))
            names.append(_short_name(utterance.id))
        except AudioError as error:
            reasons.append(str(error))
    if not rows:
        raise UserError(f"{', '.join(data)}: no audio could be read: {'; '.join(reasons[:3])}")
    return names, rows


def _short_name(utterance_id: str) -> str:
    """Returns the end of an id, with letters, digits and `-_.`, in at most 80 bytes of UTF-8."""
    name = "".join(char if char.isalnum() or char in "-_." else "_" for char in utterance_id)
    return name.encode()[-80:].decode(errors="ignore")


def _write(folder: Path, stages: Sequence[Any], row: int, length: int, front_end: FrontEnd) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draws: list[dict[str, Any]] = []
    original = np.asarray(stages[0][2].values[row, : int(stages[0][2].lengths[row])])
    levels = tuple(np.percentile(original, (1, 99.9)).tolist()) if original.size else (0.0, 1.0)
    for number, (name, samples, frames, drawn) in enumerate(stages):
        short = f"{number}-{name.partition(',')[0]}"
        if samples is not None:
            clipped = np.clip(np.rint(np.asarray(samples[row, :length])), -32768, 32767).astype(np.int16)
            write_flac(folder / f"{short}.flac", clipped, front_end.rate_hz)
        of_row = {key: np.asarray(value)[row].tolist() for key, value in drawn.items() if key != "applied"}
        draws.append({"augmentation": name, "drawn": of_row})
        values = np.asarray(frames.values[row, : int(frames.lengths[row])])
        _draw(folder / f"{short}.png", values, front_end.frame_s, name, of_row, levels)
    write_whole(folder / "drawn.json", json.dumps(draws, indent=1) + "\n")


def _draw(
    path: Path, values: Any, frame_s: float, name: str, drawn: Mapping[str, Any], levels: tuple[float, float]
) -> None:
    """Draws features, or the waveform if there is one feature per frame.

    Args:
        frame_s: Hop of the frames in seconds.
        drawn: Random values that were drawn, for the title.
        levels: Values of the lowest and the highest colour, the same for all pictures of an utterance.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    seconds = len(values) * frame_s
    if values.shape[1] == 1:
        axes.plot([place * frame_s for place in range(len(values))], values[:, 0], linewidth=0.4)
    else:
        extent, (low, high) = (0, seconds, 0, values.shape[1]), levels
        image = axes.imshow(values.T, origin="lower", aspect="auto", extent=extent, cmap="magma", vmin=low, vmax=high)
        figure.colorbar(image, ax=axes, extend="both")
    axes.set(xlabel="seconds", ylabel="feature")
    short = {key: _short(value) for key, value in drawn.items()}
    axes.set_title(name, loc="left", fontsize=9, parse_math=False)
    if short:
        values_text = ", ".join(f"{key} {value}" for key, value in short.items())
        axes.set_title(f"{name}: {values_text}"[:160], loc="left", fontsize=7, parse_math=False)
    figure.savefig(path)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "[" + " ".join(_short(each) for each in value[:10]) + (" …" if len(value) > 10 else "") + "]"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
