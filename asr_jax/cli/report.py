"""Writes a report that a browser opens without network: `python -m asr_jax.report INPUT … [--out report.html]`.

An input is the folder of a run, whose training curves are drawn, or a file of `asr_jax.evaluate --predictions`. The
predictions of a run are RUN/predictions.jsonl, unless files of predictions are given. One report has at most two runs
and two files; two systems are compared on the utterances that both have.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from asr_jax.core.errors import UserError
from asr_jax.core.files import check_no_input, check_writable, write_whole
from asr_jax.core.installation import installing
from asr_jax.core.names import counted
from asr_jax.core.options import parse
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import NonNegativeFloat, NonNegativeInt, command_options
from asr_jax.observe.events import FILE_NAME
from asr_jax.text.normalise import CHOICES, check_normaliser

PREDICTIONS = "predictions.jsonl"


@command_options
class ReportOptions:
    """Options of `asr_jax.report`."""

    inputs: Annotated[Positional[tuple[Path, ...]], arg(metavar="INPUT …")]
    """Folders of runs, and files of predictions."""
    out: Path = Path("report.html")
    """File to write."""
    data: Annotated[tuple[UserPath, ...], arg(metavar="MANIFEST …")] = ()
    """Manifests in which recordings are looked up by their ids, for predictions without a location that is readable
    here."""
    worst: Annotated[NonNegativeInt, arg(metavar="N")] = 20
    """Number of utterances with the most word errors to show with audio and spectrogram."""
    audio_mb: NonNegativeFloat = 8.0
    """Largest size in MB of all audio and spectrograms in the page."""
    normaliser: Annotated[str, arg(metavar=CHOICES)] = ""
    """Normaliser of references and hypotheses. Default: the one that the predictions name."""


def main(arguments: Sequence[str]) -> None:
    options = parse(ReportOptions, arguments, prog="python -m asr_jax.report", about=__doc__, uses_devices=False)
    check_normaliser(options.normaliser)
    check_no_input("--out", options.out, [*options.inputs, *options.data])
    check_writable(options.out)
    runs, files = _divided(options.inputs)
    try:
        from asr_jax.reporting.page import page
    except ImportError as error:
        raise UserError(f"the report needs {error.name}: {installing('report')}") from error
    from asr_jax.reporting.predictions import one_normaliser, read_predictions

    predictions = {path: read_predictions(path) for path in files}
    normaliser = options.normaliser or (one_normaliser(predictions) if predictions else "")
    written = page(
        dict(zip(_names(runs), (run / FILE_NAME for run in runs), strict=True)),
        dict(zip(_names(files), predictions.values(), strict=True)),
        normaliser=normaliser,
        num_worst=options.worst,
        most_bytes=int(1e6 * options.audio_mb),
        locations=_locations(options.data),
    )
    write_whole(options.out, written)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB, opens in a browser without network")
    if not files:
        print(
            f"without utterances: python -m asr_jax.evaluate {runs[0]} --data MANIFEST --predictions "
            f"{runs[0] / PREDICTIONS} writes the predictions that it needs"
        )


def _divided(inputs: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Returns the runs and the files of predictions of the inputs.

    Raises:
        UserError: If an input is missing, given twice, or neither of both, or if there are more than two of a kind.
    """
    runs = [path for path in inputs if path.is_dir()]
    files = [path for path in inputs if not path.is_dir()]
    if len({path.resolve() for path in inputs}) < len(inputs):
        raise UserError(f"{' '.join(map(str, inputs))}: an input is given twice; expected each once")
    for run in runs:
        if not (run / FILE_NAME).is_file():
            raise UserError(f"{run} has no {FILE_NAME}: expected the folder of a run, or a file of predictions")
    if not inputs or len(runs) > 2 or len(files) > 2:
        raise UserError(
            f"{counted(len(runs), 'run')} and {counted(len(files), 'file')} of predictions: expected at least one "
            "input, and at most two runs and two files; python -m asr_jax.evaluate RUN … has a table of more runs"
        )
    return runs, files or [path for run in runs if (path := run / PREDICTIONS).is_file()]


def _names(paths: Sequence[Path]) -> list[str]:
    """Returns names of paths: as many of the last parts as tell them apart. A run's own predictions have its name."""
    whole = map(Path.absolute, paths)
    own = [each.parent if each.name == PREDICTIONS else Path(str(each).removesuffix(".jsonl")) for each in whole]
    for num in range(1, max((len(path.parts) for path in own), default=0) + 1):
        names = [str(Path(*path.parts[-num:])) for path in own]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _locations(manifests: Sequence[str]) -> Mapping[str, str]:
    """Returns the locations of the recordings of manifests by their ids."""
    if not manifests:
        return {}
    from asr_jax.data.manifests.readers.base import ReadOptions
    from asr_jax.data.manifests.reading import read_utterances

    how = ReadOptions(texts_may_lack=True)
    return {each.id: each.location for each in read_utterances(manifests, role="validation", options=how)}
