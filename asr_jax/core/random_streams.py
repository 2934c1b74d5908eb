"""Random numbers of training: streams for each update, and a key for each utterance.

Random numbers that belong to a row, such as those of dropout, are drawn with the key of its utterance (`row_keys`).
They depend on the run's seed, the update and the utterance, but not on the row's place, the number of rows, the
devices, or the split of an update into batches.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped, UInt32

GENERATOR = "threefry2x32"
STREAMS = ("dropout", "augment", "regularise", "dither", "mask", "sampler")

_rows: ContextVar[Int[Array, " B"] | None] = ContextVar("rows", default=None)


def random_streams(key: UInt32[Array, "2"], updates: Int[Array, ""]) -> dict[str, PRNGKeyArray]:
    """Returns a key for each stream of random numbers.

    All batches of an update have the same streams.
    """
    folded = jax.random.fold_in(jax.random.wrap_key_data(key, impl=GENERATOR), updates)
    return {name: jax.random.fold_in(folded, i) for i, name in enumerate(STREAMS)}


@contextmanager
def utterances_of_rows(utterances: Int[Array, " B"]) -> Iterator[None]:
    """Sets the utterance of each row for `row_keys`, while a model is traced.

    A context variable is used instead of an argument, because dropout is at the bottom of every model.
    """
    token = _rows.set(utterances)
    try:
        yield
    finally:
        _rows.reset(token)


def row_keys(key: PRNGKeyArray, num_rows: int) -> Shaped[PRNGKeyArray, " B"]:
    """Returns a random key for each row of a batch, which depends on its utterance alone.

    Outside of `utterances_of_rows`, the number of the row is used instead.

    Raises:
        ValueError: If `utterances_of_rows` was given another number of rows.
    """
    rows = _rows.get()
    if rows is None:
        rows = jnp.arange(num_rows)
    if len(rows) != num_rows:
        raise ValueError(f"{num_rows} rows are drawn for, but the batch has {len(rows)}: expected the same number")
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(rows)


def uniform_of_rows(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "B ..."]:
    """Draws uniform numbers in [0, 1) of a shape whose first axis has the rows, with a key for each (`row_keys`)."""
    return jax.vmap(lambda each: jax.random.uniform(each, shape[1:]))(row_keys(key, shape[0]))
