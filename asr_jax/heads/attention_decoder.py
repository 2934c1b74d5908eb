"""Head of an attention decoder (AED), which computes each label from the labels before it and the encoder's output."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Int

from asr_jax.core.batch import Batch, Encoded, Frames, length_mask, zero_padding
from asr_jax.core.pytrees import Tree
from asr_jax.core.settings import between, settings
from asr_jax.core.sums import Sum, Sums
from asr_jax.core.timed_tokens import TimedTokens
from asr_jax.heads.base import DecoderHead, LabelAxis, RecognisingHead, share_of_counted, sum_counted
from asr_jax.losses.cross_entropy import uniformly_smoothed_cross_entropy
from asr_jax.losses.ctc_align import align
from asr_jax.nn.decoders.label_decoder import DecoderCache, LabelDecoder
from asr_jax.search.base import Decoding
from asr_jax.search.label_synchronous import Ids, LabelDecoding, Step, label_search, most_labels


@settings
class AttentionDecoder(DecoderHead):
    """Settings of an attention decoder. The defaults are those of icefall's zipformer recipe.

    In icefall, begin and end have the same id, 1 (`<sos/eos>`), and the scales of the losses are 0.9 for this head and
    0.1 for CTC.
    """

    decoder: LabelDecoder = LabelDecoder()
    """Settings of the decoder."""
    ctc: str = ""
    """Name of the CTC head whose log-probabilities the joint score (`decoding.ctc_weight`) and the times of labels are
    computed from. Empty: none; the times of labels are then those of the largest attention weights."""
    begin_id: Annotated[int, between(-1)] = -1
    """Label id that the decoder begins with. -1: that of the end."""
    end_id: Annotated[int, between(-1)] = -1
    """Label id of the end, which counts as a label. -1: that of the blank, which the decoder does not need."""
    decoding: LabelDecoding = LabelDecoding()
    """Settings of the search in validation, and defaults of evaluation."""

    def problems(self) -> Iterator[str]:
        if self.decoding.ctc_weight and not self.ctc:
            yield (
                f"decoding.ctc_weight is {self.decoding.ctc_weight} and ctc is empty: expected the name of a CTC head "
                "in ctc, or ctc_weight 0"
            )

    @property
    def reads(self) -> Mapping[str, str]:
        return {self.ctc: self.tap} if self.ctc else {}

    def frames_needed(self, num_labels: Any, num_repeats: Any) -> Any:
        """Returns the minimum number of frames, which is 1 for any number of labels."""
        return 0 * num_labels + 1

    def counts(self, num_frames: Int[Array, " B"], num_labels: Int[Array, " B"]) -> Int[Array, " B"]:
        return super().counts(num_frames, num_labels + 1)

    def label_axis(self, parameter: str) -> LabelAxis | None:
        if parameter == "decoder/embedding":
            return LabelAxis(0)
        return LabelAxis(-1) if parameter.startswith("decoder/output/") else None

    def build(self, *, vocab_size: int, blank_id: int, dtype: DTypeLike) -> "AttentionDecoderHead":
        if max(self.begin_id, self.end_id) >= vocab_size:
            raise ValueError(
                f"begin_id is {self.begin_id} and end_id is {self.end_id}: expected ids below the number of labels, "
                f"{vocab_size}"
            )
        return AttentionDecoderHead(self, vocab_size, blank_id, dtype)


class AttentionDecoderHead(RecognisingHead):
    """Module of an attention decoder.

    Loss term: `loss` (cross-entropy with smoothed targets, nats). Metric: `accuracy`, the share of correct labels with
    the end, given the labels before them.

    Source: `AttentionDecoderModel` in icefall's egs/librispeech/ASR/zipformer/attention_decoder.py at commit 36e0420c.
    """

    settings: AttentionDecoder

    @property
    def ids(self) -> Ids:
        """Ids of begin, end and blank."""
        end = self.blank_id if self.settings.end_id < 0 else self.settings.end_id
        return Ids(end if self.settings.begin_id < 0 else self.settings.begin_id, end, self.blank_id)

    def setup(self) -> None:
        self.decoder = self.settings.decoder.build(vocab_size=self.vocab_size, dtype=self.dtype)

    def __call__(self, encoded: Encoded, batch: Batch, *, step: Int[Array, ""] | None) -> Sums:
        frames, num_labels = self._frames(encoded), batch.token_lengths + 1
        labels = jnp.pad(batch.tokens, ((0, 0), (0, 1)))
        counted = length_mask(num_labels, labels.shape[1]) & self.feasible(frames.lengths, batch)[:, None]
        labels = jnp.where(jnp.arange(labels.shape[1])[None] == batch.token_lengths[:, None], self.ids.end, labels)
        before = jnp.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=self.ids.begin)
        logits = self.decoder(before, frames, step=step)
        losses = uniformly_smoothed_cross_entropy(logits, labels, smoothing=self.settings.smoothing)
        return {
            "loss": Sum(sum_counted(counted, losses, batch.weights), self.weight(frames.lengths, batch)),
            "accuracy": share_of_counted(jnp.argmax(logits, axis=-1) == labels, counted, batch.weights),
        }

    def _frames(self, encoded: Encoded) -> Frames:
        frames = encoded.at(self.tap)
        return Frames(zero_padding(frames.values, frames.lengths), frames.lengths)

    def search(self, encoded: Encoded, decoding: Decoding, state: Tree = None) -> tuple[Any, Tree]:
        """Returns the n-best lists of a label-synchronous search.

        Times are those of the best CTC path of each hypothesis if the head reads a CTC head and there is a path.
        Otherwise, each label is at the frame with the largest mean attention weight, or at that of the label before if
        it is later; such times are rough.

        Raises:
            ValueError: If `decoding.ctc_weight` is above 0 and the head reads no CTC head.
        """
        assert isinstance(decoding, LabelDecoding), decoding
        if decoding.ctc_weight and not self.settings.ctc:
            raise ValueError(
                f"decoding.ctc_weight is {decoding.ctc_weight}, and the attention decoder reads no CTC head: expected "
                "ctc_weight 0, or a model that was trained with heads.NAME.ctc"
            )
        frames, ctc = self._frames(encoded), encoded.emitted[self.settings.ctc] if self.settings.ctc else None
        num_frames = frames.values.shape[1]
        # Flax modules cannot be called in a loop of JAX while they are bound.
        decoder, variables = self.decoder.unbind()
        cache: Any = decoder.apply(
            variables, frames, width=decoding.width, size=most_labels(num_frames, decoding) + 1, method="begin"
        )

        def advance(carried: Any, labels: Int[Array, "B K"], place: Int[Array, ""]) -> Step:
            keys, values = carried
            whole = DecoderCache(keys, values, cache.memory_keys, cache.memory_values)
            found: Any = decoder.apply(variables, whole, labels, place, frames.lengths, method="advance")
            kept = [old.at[:, :, :, place].set(new) for old, new in zip(carried, found[1:3], strict=True)]
            return Step(jax.nn.log_softmax(found.logits), found.frames, tuple(kept))

        tokens = label_search(
            advance,
            (cache.keys, cache.values),
            frames.lengths,
            num_frames,
            ctc=ctc if decoding.ctc_weight else None,
            ids=self.ids,
            decoding=decoding,
        )
        return (_aligned(tokens, ctc, blank_id=self.blank_id) if ctc is not None else tokens), None


def _aligned(tokens: TimedTokens, ctc: Frames, *, blank_id: int) -> TimedTokens:
    """Returns the hypotheses with the times of their best CTC path, where there is one."""

    def of_place(labels: Int[Array, "B U"], lengths: Int[Array, " B"]) -> Any:
        return align(ctc.values, ctc.lengths, labels, jnp.maximum(lengths, 0), blank_id=blank_id)

    found = jax.vmap(of_place, in_axes=1, out_axes=1)(tokens.tokens, tokens.lengths)
    is_aligned = (found.is_possible & (tokens.lengths > 0))[..., None]
    starts, ends = (
        jnp.where(is_aligned & (new >= 0), new, old)
        for new, old in ((found.starts, tokens.starts), (found.ends, tokens.ends))
    )
    return tokens.replace(starts=starts, ends=ends)
