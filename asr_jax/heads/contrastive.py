"""Contrastive pre-training of wav2vec 2.0: each masked frame is classified among quantised features and distractors."""

from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import Batch, Encoded, Frames, length_mask, no_such_tap
from asr_jax.core.collectives import all_rows, own_rows, part_of_rows, total
from asr_jax.core.random_streams import row_keys
from asr_jax.core.settings import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, settings
from asr_jax.core.sums import Sum, Sums
from asr_jax.heads.base import Head, HeadSettings
from asr_jax.kernels.glu.api import glu
from asr_jax.losses.contrastive import Distractors, contrastive_loss, counted, draw_distractors
from asr_jax.nn.linear import Linear
from asr_jax.nn.schedules import Step
from asr_jax.nn.wav2vec.quantizer import QUANTIZER, GumbelQuantizer, Quantized, Quantizer, perplexity

FEATURES, EXTRACTOR = "features", "extractor"
"""Names of the encoder's taps that the head reads."""


@settings
class Contrastive(HeadSettings):
    """Settings of a contrastive pre-training head; the defaults are those of wav2vec 2.0 Base.

    The encoder needs the taps `features` and, unless `penalty` is 0, `extractor`.
    """

    quantizer: Quantizer = Quantizer()
    """Settings of the quantiser of the target features."""
    codes_dim: PositiveInt = 256
    """Dimension of quantised features."""
    same_quantizer: bool = False
    """Whether the quantiser is that of the encoder's input (Wav2Vec2.quantized_input), whose settings and dimension
    must then be `quantizer` and `codes_dim`. Its noise is drawn for the targets separately."""
    dim: PositiveInt = 256
    """Dimension in which targets and predictions are compared."""
    num_negatives: NonNegativeInt = 100
    """Number of distractors per frame from masked frames of the same utterance."""
    across_negatives: NonNegativeInt = 0
    """Number of distractors per frame from masked frames of the whole batch."""
    codebook_negatives: NonNegativeInt = 0
    """Number of distractors per frame from random codebook entries."""
    from_everywhere: bool = False
    """Whether distractors from the same utterance are drawn from all of its frames instead of masked frames only."""
    gated_targets: bool = False
    """Whether targets pass a gated linear unit before the comparison."""
    temperature: PositiveFloat = 0.1
    """Temperature that divides the cosine similarities in the contrastive loss."""
    diversity: NonNegativeFloat = 0.1
    """Factor of the diversity loss, the share of codebook entries that are not used."""
    penalty: NonNegativeFloat = 10.0
    """Factor of the mean square of the extractor's output."""

    def problems(self) -> Iterator[str]:
        if self.codes_dim % self.quantizer.groups:
            yield f"codes_dim is {self.codes_dim}: expected a multiple of quantizer.groups, {self.quantizer.groups}"
        if not (self.num_negatives or self.across_negatives or self.codebook_negatives):
            yield "num_negatives, across_negatives and codebook_negatives are 0: expected one of them to be at least 1"

    def check(self, *, taps: Collection[str], views: int) -> None:
        for tap in self.taps():
            if tap not in taps:
                free = ", or penalty=0 if the encoder has no extractor" if tap == EXTRACTOR else ""
                raise ValueError(no_such_tap(tap, taps) + free)
        if views != 1:
            raise ValueError(f"model.views is {views}: expected 1 for a contrastive head")

    def chance(self) -> dict[str, float]:
        choices = 1 + self.num_negatives + self.across_negatives + self.codebook_negatives
        groups, entries = self.quantizer.groups, self.quantizer.entries
        # The perplexity of a collapsed quantiser: one entry per group for all frames, or 2% of the entries.
        return {"accuracy": 1 / choices, "code_perplexity": max(1.0, 0.02 * entries) * groups}

    def taps(self) -> tuple[str, ...]:
        """Returns the names of the encoder's taps that the head reads."""
        return (FEATURES, EXTRACTOR) if self.penalty else (FEATURES,)

    def build(self, *, vocab_size: int, blank_id: int, dtype: DTypeLike) -> "ContrastiveHead":
        return ContrastiveHead(self)


class Draws(NamedTuple):
    """Random draws of a training step that replace those of the head. None: drawn by the head."""

    noise: Float[Array, "B T G V"] | None = None
    """Gumbel noise of the quantiser."""
    within: Int[Array, "B T N"] | None = None
    """Distractors of each frame from its row, as frame indices in the row."""
    across: Int[Array, "B T N"] | None = None
    """Distractors of each frame from the batch, as frame indices in the concatenated rows."""
    codes: Int[Array, "B T N G"] | None = None
    """Distractors of each frame from the codebooks, as entry indices."""


class ContrastiveHead(Head):
    """Module of a contrastive pre-training head.

    Loss terms: `loss` (nats), `diversity` and `penalty`, including their factors, over the number of masked frames.
    Metrics: `accuracy`, the share of masked frames whose target is the most similar; `code_perplexity` and
    `prob_perplexity`, the effective number of used entries by the most probable entries and by the probabilities.
    Training also reports the `temperature` of the quantiser.

    Source: Baevski et al. 2020 (arXiv:2006.11477), section 3.2; `Wav2Vec2Model.forward` in fairseq's
    models/wav2vec/wav2vec2.py and criterions/wav2vec_criterion.py at commit 3d262bb2.
    Differs from: the source in four points. Means over all frames exclude padding. With `from_everywhere` a distractor
    is never the frame itself. Distractors of `across_negatives` are drawn for each frame instead of being shared with
    its neighbours. Each micro-batch has its own perplexity, whereas NVIDIA uses that of the last one.
    """

    needs_mask: ClassVar[bool] = True

    settings: Contrastive

    def setup(self) -> None:
        settings = self.settings
        if not settings.same_quantizer:
            self.quantizer = GumbelQuantizer(settings.quantizer, settings.codes_dim)
        self.targets = Linear(settings.dim)
        self.predictions = Linear(settings.dim)
        if settings.gated_targets:
            self.gate = Linear(2 * settings.dim)

    def __call__(self, encoded: Encoded, batch: Batch, *, step: Step, draws: Draws | None = None) -> Sums:
        assert encoded.mask is not None, "the head needs an encoder that masks frames"
        settings, frames, draws = self.settings, encoded.frames, draws or Draws()
        weights = encoded.mask * batch.weights[:, None]
        masked = weights > 0
        features = encoded.at(FEATURES).values.astype(jnp.float32)
        quantizer = self._quantizer(encoded)
        quantized = quantizer(features, step=step, noise=draws.noise)
        targets, eligible = self._projected(quantized.values), masked
        if settings.from_everywhere:
            eligible = self._counted_frames(frames, batch) > 0
        contrast = contrastive_loss(
            self.predictions(frames.values.astype(jnp.float32)),
            targets,
            self._within(draws, eligible),
            equal=jnp.all(quantized.codes[:, :, None] == quantized.codes[:, None], axis=-1),
            temperature=settings.temperature,
            others=self._others(draws, quantizer, quantized, targets, masked),
        )
        num = jnp.sum(weights)
        terms = {
            "loss": Sum(jnp.sum(jnp.where(masked, contrast.losses, 0.0) * weights), num),
            "accuracy": Sum(jnp.sum(contrast.correct * weights), num),
        }
        return terms | self._of_sub_batches(encoded, batch, quantized, weights)

    def denominators(
        self, lengths: Mapping[str, Int[Array, " B"]], batch: Batch, *, mask: Bool[Array, "B T"] | None
    ) -> dict[str, Float[Array, ""]]:
        assert mask is not None, "the head needs an encoder that masks frames"
        factors = {"loss": 1.0, "diversity": self.settings.diversity, "penalty": self.settings.penalty}
        terms = [name for name, factor in factors.items() if factor]
        return dict.fromkeys(terms, jnp.sum(mask * batch.weights[:, None]))

    @nn.nowrap
    def scheduled(self, step: Int[Array, ""], least_wer: Float[Array, ""]) -> dict[str, Float[Array, ""]]:
        return {"temperature": self.settings.quantizer.temperature(step)}

    def emit(self, encoded: Encoded) -> Frames:
        """Returns the most probable codes `[B T G]`, int32, with their lengths."""
        features = encoded.at(FEATURES)
        codes = self._quantizer(encoded)(features.values.astype(jnp.float32), step=None).codes
        return Frames(codes, features.lengths)

    def _quantizer(self, encoded: Encoded) -> GumbelQuantizer:
        """Returns the quantiser of the targets with its parameters."""
        settings = self.settings
        if not settings.same_quantizer:
            return self.quantizer
        if QUANTIZER not in encoded.shared:
            raise ValueError(
                "same_quantizer is True, but the encoder has no quantiser: expected quantized_input True in the encoder"
            )
        params, groups = encoded.shared[QUANTIZER], settings.quantizer.groups
        shape = (groups, settings.quantizer.entries, settings.codes_dim // groups)
        if params["codebook"].shape != shape:
            raise ValueError(
                f"same_quantizer is True, but the encoder's codebook has the shape {params['codebook'].shape} and the "
                f"head's {shape}: expected the same quantizer and codes_dim in both"
            )
        rngs = {"dropout": self.make_rng("dropout")} if self.has_rng("dropout") else {}
        return GumbelQuantizer(settings.quantizer, settings.codes_dim, parent=None).bind({"params": params}, rngs=rngs)

    def _projected(self, values: Float[Array, "*rest E"]) -> Float[Array, "*rest D"]:
        projected = self.targets(values)
        return glu(self.gate(projected)) if self.settings.gated_targets else projected

    def _within(self, draws: Draws, eligible: Bool[Array, "B T"]) -> Int[Array, "B T S"]:
        """Returns how often each frame of a row (last axis) is a distractor of each frame."""
        places = draws.within
        if places is None:
            key = self.make_rng("dropout")
            places = draw_distractors(key, eligible, num=self.settings.num_negatives, same_row=True)
        return counted(places, eligible.shape[1])

    def _others(
        self,
        draws: Draws,
        quantizer: GumbelQuantizer,
        quantized: Quantized,
        targets: Float[Array, "B T D"],
        masked: Bool[Array, "B T"],
    ) -> Distractors | None:
        """Returns the distractors from the batch and the codebooks; None if there are none."""
        settings, codes, vectors = self.settings, [], []
        if settings.across_negatives:
            across = draws.across
            if across is None:
                key = self.make_rng("dropout")
                places = draw_distractors(key, all_rows(masked), num=settings.across_negatives, same_row=False)
                across = own_rows(places, len(masked))
            codes.append(all_rows(quantized.codes).reshape(-1, settings.quantizer.groups)[across])
            vectors.append(all_rows(targets).reshape(-1, targets.shape[-1])[across])
        if settings.codebook_negatives:
            drawn = draws.codes
            if drawn is None:
                shape = (masked.shape[1], settings.codebook_negatives, settings.quantizer.groups)
                keys, entries = row_keys(self.make_rng("dropout"), len(masked)), settings.quantizer.entries
                drawn = jax.vmap(lambda key: jax.random.randint(key, shape, 0, entries))(keys)
            codes.append(drawn)
            vectors.append(self._projected(quantizer.values(drawn)))
        if not codes:
            return None
        equal = jnp.all(jnp.concatenate(codes, axis=2) == quantized.codes[:, :, None], axis=-1)
        return Distractors(jnp.concatenate(vectors, axis=2), equal)

    def _counted_frames(self, frames: Frames, batch: Batch) -> Float[Array, "B T"]:
        """Returns the row's weight for frames that count in means over all frames, and 0 for all others."""
        return length_mask(frames.lengths, frames.values.shape[1]) * batch.weights[:, None]

    def _of_sub_batches(
        self, encoded: Encoded, batch: Batch, quantized: Quantized, weights: Float[Array, "B T"]
    ) -> Sums:
        """Returns terms and metrics that are computed per micro-batch, weighted by its number of masked frames."""
        settings, parts = self.settings, encoded.sub_batches
        of_part = part_of_rows(len(weights), parts)
        entries = settings.quantizer.groups * settings.quantizer.entries
        num = of_part @ jnp.sum(weights, axis=1)
        best = jax.nn.one_hot(quantized.best, settings.quantizer.entries)
        counted = self._counted_frames(encoded.frames, batch) if settings.from_everywhere else weights
        used = perplexity(quantized.probabilities, counted, parts=parts)
        values = {
            "code_perplexity": perplexity(best, counted, parts=parts),
            "prob_perplexity": used,
            "diversity": settings.diversity * (entries - used) / entries,
        }
        if settings.penalty:
            inner = encoded.at(EXTRACTOR)
            counts = self._counted_frames(inner, batch)
            of_rows = jnp.sum(jnp.mean(inner.values**2, axis=-1) * counts, axis=1)
            squares, frames = total((of_part @ of_rows, of_part @ jnp.sum(counts, axis=1)))
            values["penalty"] = settings.penalty * squares / jnp.maximum(frames, 1.0)
        return {name: Sum(jnp.sum(value * num), jnp.sum(num)) for name, value in values.items()}
