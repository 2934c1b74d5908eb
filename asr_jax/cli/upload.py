"""Uploads a checkpoint to the Hugging Face Hub: `python -m asr_jax.upload RUN [--to hf://ORGANISATION/NAME]`.

The commit has settings, tokenizer, weights (safetensors), the validation figures and a model card. The repository is
private unless --public is given. `python -m asr_jax.train --upload hf://ORGANISATION/NAME` runs this command in the
background after each best checkpoint. The token is that of hf auth login, or HF_TOKEN.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from asr_jax.core.errors import UserError
from asr_jax.core.options import parse
from asr_jax.core.settings import command_options
from asr_jax.pretrained.hub import Upload, UploadFormat, refuse_without_client


@command_options
class UploadOptions:
    """Options of `asr_jax.upload`."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a run."""
    to: Annotated[str | None, arg(metavar="hf://ORGANISATION/NAME")] = None
    """Repository; it is created if it does not exist. Default: upload.to of the run."""
    checkpoint: Annotated[int | None, arg(metavar="N")] = None
    """Number of updates of the checkpoint. Default: the best one by validation."""
    revision: Annotated[str | None, arg(metavar="BRANCH")] = None
    """Branch; it is created if it does not exist. Default: upload.revision of the run, or the main branch."""
    public: bool = False
    """Whether a new repository is public. Default: as upload.private of the run."""
    format: UploadFormat | None = None
    """Format of the files, as upload.format. Default: that of the run."""


def main(arguments: Sequence[str]) -> None:
    options = parse(UploadOptions, arguments, prog="python -m asr_jax.upload", about=__doc__)
    refuse_without_client()

    from asr_jax.config import load_experiment  # imported late, since --help does not need it
    from asr_jax.core.run_folder import EXPERIMENT
    from asr_jax.inference.uploading import upload_checkpoint

    upload = _given(load_experiment(options.run / EXPERIMENT).upload, options)
    done = upload_checkpoint(options.run, options.checkpoint, upload)
    print(f"checkpoint {done['update']} is at {done['url']}")


def _given(upload: Upload, options: UploadOptions) -> Upload:
    """Returns the settings of the run with the given options."""
    given = {name: getattr(options, name) for name in ("to", "revision", "format")}
    changes = {name: value for name, value in given.items() if value is not None}
    try:
        upload = replace(upload, **changes, private=upload.private and not options.public)
    except ValueError as error:
        raise UserError(f"--{error}") from error
    if not upload.to:
        raise UserError("the run has no upload.to: expected --to hf://ORGANISATION/NAME")
    return upload
