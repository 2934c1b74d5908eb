"""Commands that depend on the installation: a checkout of the repository has scripts that a package lacks."""

from pathlib import Path

from asr_jax.core.paths import quoted

SETUP = Path(__file__).parents[2] / "scripts" / "setup.sh"


def is_checkout() -> bool:
    """Returns whether the package is in a checkout of its repository, with scripts beside it."""
    return SETUP.is_file()


def installing(extra: str) -> str:
    """Returns the command that installs an extra of the package, such as `report`, from any working directory.

    The script of a checkout installs the versions of constraints.txt. pip finds the extras of a package that is
    installed in the metadata of the package, so that no index needs to have the package.
    """
    return f"ASR_JAX_EXTRAS={extra} {quoted(SETUP)}" if is_checkout() else f"pip install 'asr-jax[{extra}]'"
