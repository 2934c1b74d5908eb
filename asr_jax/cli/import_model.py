"""Imports a published model as a run, without training: `python -m asr_jax.import SOURCE --out RUN`.

SOURCE is a .nemo file (Conformer, FastConformer, Squeezeformer, QuartzNet, Citrinet, with CTC, RNN-T or TDT), a
Hugging Face folder (Parakeet, wav2vec 2.0, W2V-BERT 2.0), a .pt of fairseq or NVIDIA (wav2vec 2.0), a .pt of icefall
(Zipformer with CTC or a transducer), a folder of FunASR (Paraformer), or a hardware checkpoint of CAIMAN-ASR (RNN-T).
RUN gets an experiment, a tokenizer and one checkpoint: transcribe, evaluate, align, extract_features, benchmark
inference, average and --init-from take it. They also take SOURCE itself, and import it into the user's cache. Texts of
a hybrid model come from its transducer or decoder; --head ctc of transcribe and evaluate uses its CTC head.

SOURCE can also be the URL of such a file, or of a zip with one of them, as NVIDIA's NGC has. It is downloaded into the
user's cache once.

--config FILE gives the settings of a file that contains only weights, such as configs/quartznet_librispeech.py; fields
can be set after it, as for train.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from asr_jax.cli.command_line import parse_with_experiment
from asr_jax.cli.context_options import ContextOptions
from asr_jax.core.errors import UserError
from asr_jax.core.files import size_of
from asr_jax.core.options import parse
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import command_options
from asr_jax.text.normalise import check_normaliser

PROG = "python -m asr_jax.import"


@command_options
class ImportOptions(ContextOptions):
    """Options of `asr_jax.import`."""

    source: Annotated[Positional[UserPath], arg(metavar="SOURCE")]
    """File or folder of the model, or an https URL of a file."""
    out: Annotated[Path, arg(metavar="RUN")]
    """Folder of the run to write."""
    sha256: Annotated[str, arg(metavar="HEX")] = ""
    """Expected checksum of the file at the URL. Default: the file is not verified."""
    tokenizer: Annotated[UserPath, arg(metavar="PATH")] = ""
    """Tokenizer that the model was trained with, for files without one: dict.ltr.txt, bpe.model, vocab.json, or a
    tokenizer folder. Default: that of the model, or one beside the file."""
    normaliser: Annotated[str, arg(metavar="NAME")] = ""
    """Normaliser of texts, as in data.tokenizer.normaliser. Default: lower.v1 or upper.v1 if all letters of the
    vocabulary have this case, otherwise none."""
    front_end: Annotated[str, arg(metavar="NAME")] = ""
    """Front-end of the model, a name in asr_jax.audio.presets. Default: that of the model."""


def main(arguments: Sequence[str]) -> None:
    experiment = None
    if any(argument.partition("=")[0] == "--config" for argument in arguments):
        options, experiment = parse_with_experiment(ImportOptions, arguments, prog=PROG, about=__doc__)
    else:
        options = parse(ImportOptions, arguments, prog=PROG, about=__doc__)
    check_normaliser(options.normaliser)

    from asr_jax.inference.importing import import_model, refuse_existing
    from asr_jax.observe.tables import quantity
    from asr_jax.pretrained.downloads import downloaded, is_url
    from asr_jax.pretrained.published import SuppliedParts

    if options.sha256 and not is_url(options.source):
        raise UserError(f"--sha256 with {options.source}, which is a path: expected a URL, or no --sha256")
    given = SuppliedParts(
        tokenizer=options.tokenizer,
        normaliser=options.normaliser,
        front_end=options.front_end,
        context=options.context,
        model=experiment.model if experiment else None,
        labels=experiment.data.tokenizer if experiment else None,
    )
    refuse_existing(options.out)
    source = Path(options.source)
    if is_url(options.source):
        source = downloaded(options.source, options.sha256)
        print(f"{options.source}: {quantity(size_of(source), 'B')} in {source}")
    for line in import_model(source, options.out, given=given):
        print(line)
