"""Files of the folders of FunASR's model hub."""

from pathlib import Path

from asr_jax.core.errors import UserError

CONFIG, STATISTICS, WEIGHTS = "config.yaml", "am.mvn", "model.pt"
HUB = "configuration.json"
"""File of the model hub that names the other files."""


def is_folder(path: Path) -> bool:
    """Returns whether a path is a folder of FunASR, of any of its models."""
    return path.is_dir() and (path / CONFIG).is_file() and any((path / name).is_file() for name in (HUB, WEIGHTS))


def weights_file(folder: Path) -> Path:
    """Returns the file with the weights.

    Raises:
        UserError: If it is missing.
    """
    file = folder / WEIGHTS
    if not file.is_file():
        raise UserError(f"{file} does not exist: expected the weights of the model beside {CONFIG}")
    return file
