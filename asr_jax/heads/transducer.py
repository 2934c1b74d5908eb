"""Head of transducers: a prediction network of labels, and a joint network of frames and predictions."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, UInt32

from asr_jax.core.batch import Batch, Encoded, Frames, length_mask
from asr_jax.core.errors import UserError
from asr_jax.core.matmul_precision import float32_product
from asr_jax.core.pytrees import Tree, pick
from asr_jax.core.random_streams import GENERATOR, row_keys
from asr_jax.core.settings import NonNegativeFloat, NonNegativeInt, PositiveInt, Share, between, settings
from asr_jax.core.shapes import DimSize
from asr_jax.core.sums import Sum, Sums
from asr_jax.heads.base import LEAST_WER, PROGRESS, LabelAxis, LabelHead, RecognisingHead, sum_counted
from asr_jax.kernels.implementations import preferred
from asr_jax.kernels.transducer_joint.api import reason_against, transducer_joint
from asr_jax.kernels.transducer_joint.reference import arc_log_probs
from asr_jax.kernels.transducer_joint.xla import in_tiles, logits_of_tile
from asr_jax.losses.lattice import RNNT, Arcs, lattice_loss
from asr_jax.losses.pruned_transducer import (
    kept_log_probs,
    kept_positions,
    occupancies,
    pruned_log_probs,
    simple_log_probs,
)
from asr_jax.losses.transducer import (
    NO_PENALTIES,
    Penalties,
    penalised,
    tdt_arcs,
    tdt_log_probs,
)
from asr_jax.nn.linear import Linear
from asr_jax.nn.recurrent.prediction import LSTMPrediction, PredictionSettings
from asr_jax.search.base import Decoding
from asr_jax.search.transducer import TransducerDecoding
from asr_jax.search.transducer_beam import LogitScaling
from asr_jax.search.transducer_beam_state import TransducerFrames
from asr_jax.search.transducer_greedy import Carried, Decision, greedy_transducer_search


@settings
class Pruning:
    """Settings of the pruned loss. The defaults are icefall's.

    Source: Kuang et al. 2022 (arXiv:2206.13236); icefall's zipformer/train.py at commit 36e0420c. Differs from: padding
    does not count in the mean distribution of the language part.
    """

    size: Annotated[int, between(2)] = 5
    """Number of label positions that are kept at each frame."""
    acoustic_scale: NonNegativeFloat = 0.0
    """Share of the acoustic part alone in the simple loss."""
    language_scale: NonNegativeFloat = 0.25
    """Share of the language part alone in the simple loss."""
    simple_scale: NonNegativeFloat = 0.5
    """Factor of the simple loss after the warm-up. It falls from 1 during the warm-up."""
    warmup: NonNegativeInt = 2000
    """Number of updates over which the factor of the pruned loss rises from 0.1 to 1."""

    def problems(self) -> Iterator[str]:
        if self.acoustic_scale + self.language_scale > 1:
            yield (
                f"acoustic_scale is {self.acoustic_scale} and language_scale is {self.language_scale}: expected a sum "
                "of at most 1"
            )


@settings
class Transducer(LabelHead):
    """Settings of a transducer head. The defaults are CAIMAN-ASR's base model, with the exact loss in tiles."""

    weight_by = "utterances"
    prediction: PredictionSettings = LSTMPrediction()
    """Prediction network: LSTMPrediction or StatelessPrediction."""
    joint_dim: PositiveInt = 768
    """Width of the joint network."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation of the joint network: relu in CAIMAN-ASR and NeMo, tanh in icefall."""
    dropout: Annotated[float, between(0, 255 / 256)] = 0.3
    """Dropout rate of the joint network, rounded to a multiple of 1/256."""
    pruning: Pruning | None = None
    """Settings of the pruned loss. None: the exact loss."""
    durations: tuple[NonNegativeInt, ...] = ()
    """Durations of labels in frames for a token-and-duration transducer (TDT), such as 0 1 2 3 4. Empty: RNN-T."""
    sigma: NonNegativeFloat = 0.0
    """TDT: number that is subtracted from the log-probabilities of labels and blanks. NeMo uses 0.02 to 0.05."""
    omega: Share = 0.0
    """TDT: share of the loss of RNN-T, which ignores durations, in the loss. NeMo uses 0.1. Differs from: NeMo, which
    draws one of the two losses for each batch; the expected gradient is the same."""
    fast_emit: NonNegativeFloat = 0.0
    """λ of FastEmit, which favours early labels."""
    penalties: Penalties = NO_PENALTIES
    """Delay penalty, EOS penalty, and label for missing text (star)."""
    split: PositiveInt = 1
    """Number of parts that the rows of a device are split into for the joint network and the loss (batch_split_factor);
    at most one for each row. The encoder and the prediction network compute whole batches. Only memory and speed depend
    on it."""
    decoding: TransducerDecoding = TransducerDecoding()
    """Settings of the search in validation, and defaults of evaluation."""

    def problems(self) -> Iterator[str]:
        if not self.durations:
            if self.omega:
                yield f"omega is {self.omega}: expected 0 without durations"
            return
        if len({*self.durations}) < len(self.durations) or 1 not in self.durations:
            yield f"durations is {self.durations}: expected distinct numbers of frames, among them 1"
        if self.pruning:
            yield "durations and pruning are set: expected one of them only"
        if self.penalties != NO_PENALTIES:
            yield "durations and penalties are set: expected one of them only"

    def frames_needed(self, num_labels: Any, num_repeats: Any) -> Any:
        """Returns the minimum number of frames: 1, more for pruning and for durations without 0."""
        if self.pruning:
            return 1 + (num_labels - 1) // (self.pruning.size - 1) * (num_labels > 0)
        return 0 * num_labels + 1 if not self.durations or 0 in self.durations else num_labels + 1

    @property
    def row_parts(self) -> int:
        return self.split

    def label_axis(self, parameter: str) -> LabelAxis | None:
        if parameter == "prediction/embedding/embedding":
            return LabelAxis(0, -1 if isinstance(self.prediction, LSTMPrediction) else 0)
        part = parameter.partition("/")[0]
        if part == "output":
            return LabelAxis(-1, len(self.durations))
        return LabelAxis(-1) if part in ("simple_frames", "simple_labels") else None

    def build(self, *, vocab_size: int, blank_id: int, dtype: DTypeLike) -> "TransducerHead":
        for name in ("eos_id", "star_id"):
            label = getattr(self.penalties, name)
            if label >= vocab_size or label == blank_id:
                raise UserError(
                    f"penalties.{name} is {label}: expected a label of the vocabulary, 0 to {vocab_size - 1}, other "
                    f"than the blank {blank_id}, or -1"
                )
        return TransducerHead(self, vocab_size, blank_id, dtype)


class TransducerHead(RecognisingHead):
    """Module of a transducer head.

    Loss terms: `loss` (nats) and, with pruning, `simple`; both include the factors of `Pruning`. Metric: `infeasible`,
    the share of rows whose frames are too few for any path, as for rows without frames.

    Source: Graves 2012 (arXiv:1211.3711), with the joint network of He et al. 2018 (arXiv:1811.06621).
    """

    settings: Transducer

    @property
    def arcs(self) -> Arcs:
        return tdt_arcs(self.settings.durations) if self.settings.durations else RNNT

    def setup(self) -> None:
        settings = self.settings
        self.prediction = settings.prediction.build(
            vocab_size=self.vocab_size, blank_id=self.blank_id, dtype=self.dtype
        )
        self.of_frames = Linear(settings.joint_dim, dtype=self.dtype)
        self.of_labels = Linear(settings.joint_dim, dtype=self.dtype)
        self.output = Linear(self.vocab_size + len(settings.durations), dtype=self.dtype)
        if settings.pruning:
            self.simple_frames = Linear(self.vocab_size, 0.25, dtype=self.dtype)
            self.simple_labels = Linear(self.vocab_size, 0.25, dtype=self.dtype)

    def __call__(self, encoded: Encoded, batch: Batch, *, step: Int[Array, ""] | None) -> Sums:
        settings, frames = self.settings, encoded.at(self.tap)
        predicted = self.prediction(batch.tokens, batch.token_lengths, step=step)
        projected = self.of_frames(frames.values), self.of_labels(predicted)
        rows, lengths = batch.weights, frames.lengths
        feasible = self.feasible(lengths, batch)
        weight = self.weight(lengths, batch)
        terms = {"infeasible": Sum(jnp.sum(jnp.where(feasible, 0.0, rows)), jnp.sum(rows))}
        values = settings.penalties.values(step, self.get_variable(PROGRESS, LEAST_WER, jnp.array(jnp.inf)))
        keys = None
        if settings.dropout and step is not None:
            keys = jax.random.key_data(row_keys(self.make_rng("dropout"), len(rows)))
        starts = None
        of_simple, of_loss = 1.0, 1.0
        if settings.pruning:
            of_simple, of_loss = self._factors(step)
            simple = self._simple(frames, predicted, batch, values)
            losses = lattice_loss(simple[0][None], simple[1][None], lengths, batch.token_lengths)
            terms["simple"] = Sum(of_simple * sum_counted(feasible, losses, rows), weight)
            size = min(settings.pruning.size, batch.tokens.shape[1] + 1)
            kept = occupancies(*simple, lengths, batch.token_lengths)
            starts = kept_positions(*kept, lengths, batch.token_lengths, size=size)
        of_arcs, of_rnnt = self._arcs(projected, batch, lengths, keys, starts, values)
        losses = lattice_loss(*of_arcs, lengths, batch.token_lengths, self.arcs, settings.fast_emit)
        if settings.omega:
            plain = lattice_loss(*of_rnnt, lengths, batch.token_lengths, RNNT, settings.fast_emit)
            losses = (1 - settings.omega) * losses + settings.omega * plain
        terms["loss"] = Sum(of_loss * sum_counted(feasible, losses, rows), weight)
        return terms

    def scheduled(self, step: Int[Array, ""], least_wer: Float[Array, ""]) -> dict[str, Float[Array, ""]]:
        penalties = self.settings.penalties
        values, since = (
            penalties.values(step, least_wer),
            {"delay": penalties.delay_since, "star": penalties.star_since},
        )
        return {f"{name}_penalty": values[name] for name, each in since.items() if each.wer or each.updates}

    def _factors(self, step: Int[Array, ""] | None) -> tuple[Any, Any]:
        """Returns the factors of the simple loss and of the pruned loss after `step` updates."""
        assert self.settings.pruning
        pruning = self.settings.pruning
        if step is None:
            return pruning.simple_scale, 1.0
        share = jnp.minimum(step / max(pruning.warmup, 1), 1.0)
        return 1.0 - share * (1.0 - pruning.simple_scale), 0.1 + 0.9 * share

    def _simple(
        self, frames: Frames, predicted: Float[Array, "B S D"], batch: Batch, values: Mapping[str, Any]
    ) -> tuple[Float[Array, "B T S"], Float[Array, "B T U"]]:
        """Returns the log-probabilities of the loss whose joint network is an addition."""
        assert self.settings.pruning
        pruning = self.settings.pruning
        # Neither padding nor padding rows count, which depend on the batch and on the devices.
        weights = length_mask(batch.token_lengths + 1, predicted.shape[1]) * batch.weights[:, None]
        simple = simple_log_probs(
            self.simple_frames(frames.values),
            self.simple_labels(predicted),
            batch.tokens,
            blank_id=self.blank_id,
            acoustic_scale=pruning.acoustic_scale,
            language_scale=pruning.language_scale,
            weights=weights,
        )
        return penalised(*simple, frames.lengths, batch.tokens, self.settings.penalties, values)

    def _arcs(
        self,
        projected: tuple[Float[Array, "B T J"], Float[Array, "B S J"]],
        batch: Batch,
        lengths: Int[Array, " B"],
        keys: UInt32[Array, "B 2"] | None,
        starts: Int[Array, "B T"] | None,
        values: Mapping[str, Any],
    ) -> tuple[tuple[Float[Array, "K B T S"], Float[Array, "L B T U"]], Any]:
        """Returns the log-probabilities of all arcs, and those of RNN-T's arcs if `omega` is set, computed in tiles.

        Args:
            projected: Projected frames and predictions.
            lengths: Number of frames of each row.
            keys: Data of the random key of each row for dropout. None: no dropout.
            starts: First label position that is kept at each frame. None: no pruning.
            values: `Penalties.values`.
        """
        settings, arcs = self.settings, self.arcs
        kernel, bias = self.output_parameters()
        given = (*projected, kernel.astype(self.dtype), bias[0, 0, 0], batch.tokens)
        reason = self._reason_against_kernels(drops=keys is not None)
        kernel_name = preferred(
            "transducer_joint", *given[:4], reason_against=lambda name: reason or reason_against(name, given)
        )
        if kernel_name:
            if reason:
                raise UserError(f"training.kernels has transducer_joint={kernel_name}, and {reason}")
            blank, label = transducer_joint(
                *given, lengths, batch.token_lengths, blank_id=self.blank_id, activation=settings.activation
            )
            blank, label = penalised(blank, label, lengths, batch.tokens, settings.penalties, values)
            return (blank[None], label[None]), None
        size = projected[1].shape[1] if starts is None else min(settings.pruning.size, projected[1].shape[1])  # type: ignore[union-attr]

        def compute(of_frames: Any, of_rows: Any, first: Any) -> Any:
            frames, predictions = of_frames["frames"], of_rows["predictions"].astype(self.dtype)
            if starts is None:
                predictions = predictions[:, None]
            else:
                places = of_frames["starts"][..., None] + jnp.arange(size)[None, None]
                places = jnp.minimum(places, predictions.shape[1] - 1)
                predictions = jax.vmap(lambda row, places: row[places])(predictions, places)
            hidden = frames[:, :, None] + predictions
            hidden = nn.relu(hidden) if settings.activation == "relu" else jnp.tanh(hidden)
            if keys is not None:
                hidden = self._dropped(hidden, of_rows["keys"], first)
            # The conversions of predictions and weights are within tiles, whose gradients are thus added in float32.
            logits = float32_product("btsj,jv->btsv", hidden, kernel.astype(self.dtype)) + bias
            if starts is not None:
                return kept_log_probs(logits, of_frames["starts"], of_rows["labels"], blank_id=self.blank_id)
            if not settings.durations:
                return arc_log_probs(logits, of_rows["labels"], blank_id=self.blank_id)
            blank, label = tdt_log_probs(
                logits, of_rows["labels"], blank_id=self.blank_id, arcs=arcs, sigma=settings.sigma
            )
            of_arcs = jnp.moveaxis(blank, 0, -1), jnp.moveaxis(label, 0, -1)
            if not settings.omega:
                return of_arcs
            return of_arcs, arc_log_probs(logits[..., : self.vocab_size], of_rows["labels"], blank_id=self.blank_id)

        of_frames = {"frames": projected[0]} | ({} if starts is None else {"starts": starts})
        of_rows = {"predictions": projected[1].astype(jnp.float32), "labels": batch.tokens}
        of_rows |= {} if keys is None else {"keys": keys}
        # If `split` does not divide the rows of a device, there are more parts, so that memory does not grow.
        rows = len(lengths)
        num_splits = next(num for num in range(min(settings.split, rows), rows + 1) if rows % num == 0)
        of_frame = rows // num_splits * size * (self.vocab_size + len(settings.durations))
        most, num_frames = logits_of_tile(), projected[0].shape[1]
        tile_frames = 0 if of_frame * num_frames <= most else max(most // of_frame, 1)  # 0: all frames
        found = in_tiles(compute, of_frames, of_rows, tile_frames=tile_frames, num_splits=num_splits)
        if settings.durations:
            (blank, label), of_rnnt = found if settings.omega else (found, None)
            of_arcs = jnp.moveaxis(blank, -1, 0), jnp.moveaxis(label, -1, 0)
            return of_arcs, of_rnnt and tuple(each[None] for each in of_rnnt)
        blank, label = found
        if starts is not None:
            blank, label = pruned_log_probs(blank, label, starts, num_labels=batch.tokens.shape[1])
        blank, label = penalised(blank, label, lengths, batch.tokens, settings.penalties, values)
        return (blank[None], label[None]), None

    def _reason_against_kernels(self, *, drops: bool) -> str:
        """Returns the reason why no kernel computes this joint network; empty if there is none."""
        settings = self.settings
        if not (drops or settings.pruning or settings.durations):
            return ""
        return (
            f"the head has dropout {settings.dropout}, pruning {settings.pruning} and durations {settings.durations}: "
            "expected none of these for the kernel"
        )

    def output_parameters(self) -> tuple[Float[Array, "J V"], Float[Array, "1 1 1 V"]]:
        """Returns the kernel and the bias of the output in float32."""
        if self.is_initializing():
            self.output(jnp.zeros((1, self.settings.joint_dim), self.dtype))
        parameters: Any = nn.meta.unbox(self.variables["params"]["output"])
        return parameters["kernel"], parameters["bias"][None, None, None]

    def _dropped(
        self, hidden: Float[Array, "b t S J"], keys: UInt32[Array, "b 2"], first: Any
    ) -> Float[Array, "b t S J"]:
        """Applies dropout with random numbers that depend on utterance and frame, not on tiles and parts.

        A random word gives four bytes, one for each value.
        """
        rate = round(256 * self.settings.dropout)
        size = math.prod(hidden.shape[2:])
        frames = first + jnp.arange(hidden.shape[1])

        def of_row(key: Array) -> Array:
            key = jax.random.wrap_key_data(key, impl=GENERATOR)
            words = jax.vmap(lambda frame: jax.random.bits(jax.random.fold_in(key, frame), (-(-size // 4),)))(frames)
            return jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(len(frames), -1)[:, :size]

        kept = jax.vmap(of_row)(keys).reshape(hidden.shape) >= rate
        return hidden * (kept * (256 / (256 - rate))).astype(hidden.dtype)

    @property
    def terms(self) -> tuple[str, ...]:
        return ("loss", "simple") if self.settings.pruning else ("loss",)

    @property
    def start_labels(self) -> int:
        """Number of labels before the first one that count in the length of a hypothesis."""
        return self.settings.prediction.start_labels

    @property
    def durations(self) -> tuple[int, ...]:
        """Durations of labels. Their logits follow the logits of the labels."""
        return self.settings.durations

    def begin(self, num_rows: DimSize) -> dict[str, Any]:
        """Returns the state of the prediction network before the first label, with its projected output.

        Args:
            num_rows: Number of rows, the first axis of the arrays.
        """
        return self._projected(self.prediction.start(num_rows))

    def advance(self, before: Mapping[str, Any], labels: Int[Array, " B"]) -> dict[str, Any]:
        """Returns the state of the prediction network after one more label, with its projected output.

        Args:
            before: State before the label.
        """
        return self._projected(self.prediction.advance(before, labels))

    def _projected(self, predicted: Mapping[str, Any]) -> dict[str, Any]:
        state = {name: value for name, value in predicted.items() if name != "output"}
        return state | {"projected": self.of_labels(predicted["output"])}

    def logits(self, frames: Float[Array, "B W J"], projected: Float[Array, "B P J"]) -> Float[Array, "B Q V"]:
        """Returns the logits of the joint network.

        Args:
            projected: Projected predictions: one for all frames, or as many as frames, or several for one frame.
        """
        kernel, bias = self.output_parameters()
        hidden = frames + projected
        hidden = nn.relu(hidden) if self.settings.activation == "relu" else jnp.tanh(hidden)
        return jnp.matmul(hidden, kernel.astype(self.dtype), preferred_element_type=jnp.float32) + bias[0]

    def initial_state(self, num_rows: int, decoding: Decoding) -> Tree:
        """Returns the state of greedy search; an empty one for beam search, which has it on the host."""
        assert isinstance(decoding, TransducerDecoding), decoding
        return () if decoding.kind == "beam" else Carried(self.begin(num_rows), jnp.zeros(num_rows, jnp.int32))

    def search(self, encoded: Encoded, decoding: Decoding, state: Tree = None) -> tuple[Any, Tree]:
        """Returns the token sequences of a greedy search, or `TransducerFrames` for the stage of beam search."""
        assert isinstance(decoding, TransducerDecoding), decoding
        frames, durations = encoded.at(self.tap), self.settings.durations
        projected = self.of_frames(frames.values)
        self.output_parameters()
        # Flax modules cannot be called in a loop of JAX while they are bound.
        head, variables = self.unbind()
        if decoding.kind == "beam":
            # Windows of streams would copy the variables each time.
            used = ("prediction/", "of_labels/", "output/") if state is None else ()
            variables = {name: pick(tree, lambda path: path.startswith(used)) for name, tree in variables.items()}
            return TransducerFrames(projected, frames.lengths, variables, head), state
        scaled = LogitScaling(decoding.temperature, decoding.blank_penalty, self.blank_id)
        jumps_of = jnp.asarray(durations or (0,))

        def decide(at: Int[Array, "B W"], predicted: Any) -> Decision:
            values = jax.vmap(lambda row, at: row[at])(projected, at)
            logits: Any = head.apply(variables, values, predicted["projected"][:, None], method="logits")
            scores = scaled(logits[..., : self.vocab_size])
            best = jnp.max(scores, axis=-1)
            # XLA's argmax takes several times as long on CPUs.
            places = jnp.where(scores == best[..., None], jnp.arange(self.vocab_size)[None, None], self.vocab_size - 1)
            labels = jnp.min(places, axis=-1).astype(jnp.int32)
            log_probs = best - jax.nn.logsumexp(scores, axis=-1)
            is_blank = labels == self.blank_id
            if not durations:
                return Decision(labels, log_probs, is_blank.astype(jnp.int32))
            jumps = jumps_of[jnp.argmax(logits[..., self.vocab_size :], axis=-1)].astype(jnp.int32)
            return Decision(labels, log_probs, jnp.where(is_blank, jnp.maximum(jumps, 1), jumps))

        def advance(before: Any, labels: Int[Array, " B"]) -> Any:
            return head.apply(variables, before, labels, method="advance")

        found, after = greedy_transducer_search(
            frames.lengths,
            projected.shape[1],
            decide=decide,
            start=self.begin(len(projected)),
            advance=advance,
            blank_id=self.blank_id,
            max_symbols=decoding.max_symbols,
            carried=state,
        )
        return found, None if state is None else after
