"""Frames that layers keep between the windows of streams."""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

Extend = Callable[[Float[Array, "B T ..."]], Float[Array, "B S ..."]]
"""Function that puts the kept frames of former windows before those of a window. It changes nothing in whole rows."""


def unextended(x: Float[Array, "B T ..."]) -> Float[Array, "B T ..."]:
    """Returns `x`: a whole row has no former windows."""
    return x


class Cache:
    """Frames that a module keeps between the windows of streams, each with a name."""

    def __init__(self, before: Mapping[str, Float[Array, "B K ..."]] | None) -> None:
        """Creates the cache for one window.

        Args:
            before: Frames that the former windows kept; 0 before the first window. None: rows are whole, and nothing is
                kept.
        """
        self.before = before
        self.after: dict[str, Float[Array, "B K ..."]] | None = None if before is None else {}
        """Frames that this window keeps for the next one, with the names and shapes of `before`."""

    def extend(self, name: str, *, ahead: int = 0) -> Extend:
        """Returns the function that extends frames of a window and keeps the last ones for the next window.

        Args:
            ahead: Number of frames at the end of the window that the next window has again.
        """
        if self.before is None or self.after is None:
            return unextended
        before, after = self.before[name], self.after

        def extended(x: Float[Array, "B T ..."]) -> Float[Array, "B S ..."]:
            joined = jnp.concatenate([before, x], axis=1)
            start = x.shape[1] - ahead
            after[name] = joined[:, start : start + before.shape[1]]
            return joined

        return extended
