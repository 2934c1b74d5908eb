"""Imports a published model as a run, without training: `python -m asr_jax.import SOURCE --out RUN`.

SOURCE is a .nemo file (Conformer, FastConformer, Squeezeformer, QuartzNet, Citrinet, with CTC, RNN-T or TDT), a
Hugging Face folder (Parakeet, wav2vec 2.0, W2V-BERT 2.0), a .pt of fairseq or NVIDIA (wav2vec 2.0), a .pt of icefall
(Zipformer with CTC or a transducer), a folder of FunASR (Paraformer), or a hardware checkpoint of CAIMAN-ASR (RNN-T).
RUN gets an experiment, a tokenizer and one checkpoint: transcribe, evaluate, align, extract_features, benchmark
inference, average and --init-from take it. They also take SOURCE itself, and import it into the user's cache. Texts of
a hybrid model come from its transducer or decoder; --head ctc of transcribe and evaluate uses its CTC head.

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
from asr_jax.core.options import parse
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import command_options
from asr_jax.text.normalise import check_normaliser

PROG = "python -m asr_jax.import"


@command_options
class ImportOptions(ContextOptions):
    """Options of `asr_jax.import`."""

    source: Annotated[Positional[Path], arg(metavar="SOURCE")]
    """File or folder of the model."""
    out: Annotated[Path, arg(metavar="RUN")]
    """Folder of the run to write."""
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

    from asr_jax.inference.importing import import_model
    from asr_jax.pretrained.published import SuppliedParts

    given = SuppliedParts(
        tokenizer=options.tokenizer,
        normaliser=options.normaliser,
        front_end=options.front_end,
        context=options.context,
        model=experiment.model if experiment else None,
        labels=experiment.data.tokenizer if experiment else None,
    )
    for line in import_model(options.source, options.out, given=given):
        print(line)
