"""Results of checks that are the same at every start of a run, kept beside the columns."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from asr_jax.core.files import write_whole
from asr_jax.core.text_files import json_text, read_text
from asr_jax.data.manifests.arrays import digest_of_values
from asr_jax.data.manifests.cache import PACKAGE, digest_of_code

SOURCES = (PACKAGE / "data", PACKAGE / "text")
"""Folders of the code that computes results. If a file of them changes, results are computed again."""
FROM = 100_000
"""Number of rows from which a result is kept: for fewer, to compute it takes less time than a file."""


def remembered[R](folder: Path | None, name: str, inputs: tuple[Any, ...], work: Callable[[], R]) -> R:
    """Returns `work()`, or its result at an earlier start with equal inputs.

    Args:
        folder: Folder of the columns in the cache. None: nothing is kept.
        inputs: Everything that the result depends on: arrays, and values with a `repr` that determines them. One of
            the arrays has a row for each utterance.
        work: Computes the result, a JSON value without tuples.
    """
    if folder is None or max((len(each) for each in inputs if isinstance(each, np.ndarray)), default=0) < FROM:
        return work()
    path = folder / f"remembered-{name}-{digest_of_values(digest_of_code(SOURCES), *inputs)[:24]}.json"
    with suppress(OSError, ValueError, KeyError):
        return json.loads(read_text(path))["result"]
    result = work()
    with suppress(OSError):  # another user may own the cache
        write_whole(path, json_text({"result": result}))
    return result
