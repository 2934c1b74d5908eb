"""Upload of a model's folder to the Hugging Face Hub: its settings, and one commit for all files of the folder."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from asr_jax.core.errors import RunError, UserError
from asr_jax.core.installation import installing
from asr_jax.core.settings import settings

PREFIX = "hf://"
UploadFormat = Literal[
    "ours", "huggingface", "funasr", "nemo", "icefall", "fairseq", "deeplearningexamples", "caiman", "keras"
]


@settings
class Upload:
    """Upload of the best checkpoint of a run to the Hugging Face Hub, without waiting for it.

    An upload that takes longer than an hour is stopped. The end of a run waits 10 minutes for the last one.
    """

    to: str = ""
    """Repository, as hf://ORGANISATION/NAME. It is created if it does not exist. The token is that of hf auth login, or
    HF_TOKEN. Empty: no upload."""
    revision: str = ""
    """Branch of the repository. It is created if it does not exist. Empty: the main branch."""
    private: bool = True
    """Whether the repository is private if the upload creates it. An existing one is not changed."""
    format: UploadFormat = "ours"
    """Format of the files. ours: experiment.json, tokenizer and weights, which all commands read. huggingface, funasr:
    a folder for these systems. Others: as ours, but with the weights in the names and the file format of that
    system."""

    def problems(self) -> Iterator[str]:
        if self.to and not re.fullmatch(r"hf://[\w.-]+/[\w.-]+", self.to):
            yield f"to is {self.to!r}: expected hf://ORGANISATION/NAME"

    @property
    def repository(self) -> str:
        """Name of the repository on the hub, as ORGANISATION/NAME."""
        return self.to.removeprefix(PREFIX)

    @property
    def place(self) -> str:
        """Repository and branch, as hf://ORGANISATION/NAME@BRANCH."""
        return self.to + f"@{self.revision}" * bool(self.revision)


def refuse_without_client() -> None:
    """Checks that the client of the hub is installed.

    Raises:
        UserError: If it is not.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise UserError(
            f"upload.to needs the client of the Hugging Face Hub: {installing('upload')}, or leave it empty"
        )


def has_token() -> bool:
    """Returns whether a token of the hub is in the environment or was saved by hf auth login."""
    from huggingface_hub import get_token

    return get_token() is not None


def send(folder: Path, upload: Upload, *, message: str) -> dict[str, str]:
    """Uploads all files of a folder in one commit. Files of equal content that the hub has are not sent again.

    Returns:
        Hash and address of the commit, as `commit` and `url`.

    Raises:
        RunError: If the hub cannot be reached, or refuses the upload.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    files = sorted(path for path in folder.rglob("*") if path.is_file())
    added = [CommitOperationAdd(str(path.relative_to(folder)), path) for path in files]
    api, repository, branch = HfApi(library_name="asr-jax"), upload.repository, upload.revision or None
    try:
        api.create_repo(repository, private=upload.private, exist_ok=True)
        if branch:
            api.create_branch(repository, branch=branch, exist_ok=True)
        commit = api.create_commit(repository, added, commit_message=message, revision=branch)
    except Exception as error:  # errors of the hub, of HTTP and of the operating system
        raise RunError(f"{upload.place} cannot be uploaded: {_reason(error)}") from error
    return {"commit": commit.oid, "url": commit.commit_url}


def _reason(error: BaseException) -> str:
    """Returns the kind of an error and the first lines of its message, which has the hub's answer, on one line."""
    if isinstance(error, RuntimeError) and error.__cause__:  # "Error while uploading", without a reason
        error = error.__cause__
    lines = [line.strip() for line in str(error).split("\n") if line.strip() and not line.startswith("For more")]
    return f"{type(error).__name__}: {' '.join(lines[:3])[:400]}".rstrip(": ")
