"""Options of commands that choose the attention context of a streaming encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from asr_jax.core.errors import UserError
from asr_jax.core.settings import NonNegativeInt, command_options

if TYPE_CHECKING:
    from asr_jax.models.encoder import Context


@command_options
class ContextOptions:
    """Chunks of attention."""

    chunk_frames: Annotated[NonNegativeInt | None, arg(metavar="N")] = None
    """Length of a chunk of attention in frames of the encoder's layers (20 ms in Zipformer), for models that stream. 0:
    the whole recording. Default: the first one of the model's contexts."""
    left_frames: Annotated[NonNegativeInt | None, arg(metavar="N")] = None
    """Number of frames before a chunk that attention sees. Default: all. Streams need a number. Requires
    --chunk-frames."""

    @property
    def context(self) -> Context | None:
        """The context of attention; None for that of the model.

        Raises:
            UserError: If `left_frames` is given without chunks.
        """
        if self.left_frames is not None and not self.chunk_frames:
            raise UserError(f"--left-frames is {self.left_frames}: expected --chunk-frames too")
        from asr_jax.models.encoder import Context  # imported late, since --help does not need it

        return None if self.chunk_frames is None else Context(self.chunk_frames or None, self.left_frames)
