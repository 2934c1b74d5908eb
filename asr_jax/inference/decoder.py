"""The compiled model with one head and its search, which converts batches to transcripts."""

import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import Batch, Frames
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import abstract_on, own_mesh, replicated
from asr_jax.core.processes import gathered
from asr_jax.core.programs import TRACED, Program, Programs
from asr_jax.core.pytrees import Tree
from asr_jax.core.timed_tokens import TimedTokens, TokenSequence
from asr_jax.data.batching.buckets import Bucket, Scale
from asr_jax.inference.by_shape import ByShape, abstract_batch
from asr_jax.metrics.confidence import Calibration
from asr_jax.models.base import Recogniser
from asr_jax.search.base import Decoding
from asr_jax.text.tokenizers import Tokenizer
from asr_jax.transcripts.transcript import Transcript
from asr_jax.transcripts.words import Writer


class HeadSearch:
    """The search of one head: its stage on the device, as a part of the model's program, and its stage on the host."""

    def __init__(
        self,
        model: Recogniser,
        tokenizer: Tokenizer,
        *,
        head: str,
        decoding: Decoding,
        calibration: Calibration | None = None,
        num_shares: int = 1,
    ) -> None:
        """Builds the search.

        Args:
            tokenizer: Tokenizer of the head's labels.
            calibration: Calibration of word confidences. None: none is applied.
            num_shares: Number of processes that share the rows of a batch, if there is a stage on the host.

        Raises:
            UserError: If a language model or a lexicon cannot be read or does not fit the vocabulary.
        """
        self.model, self.head, self.decoding = model, head, decoding
        times = model.frame_times(tap=model.heads[head].tap)
        self.writer = Writer(tokenizer, times=times, calibration=calibration)
        self.stage = decoding.host_stage(tokenizer, num_shares=num_shares)
        self.num_shares = num_shares if self.stage else 1
        self._share = jax.process_index() if self.num_shares > 1 else 0
        self.takes_frames = self.stage is not None and self.stage.takes_frames
        """Whether long audio is searched in joined log-probabilities, instead of joining tokens of windows."""

    def __call__(self, variables: Tree, batch: Batch, *, gives_log_probs: bool = False) -> tuple[Any, Frames | None]:
        """Runs the stage on the device; to be jitted.

        Args:
            gives_log_probs: Whether log-probabilities are returned as well.

        Returns:
            `TimedTokens`, or the input of the stage on the host; and log-probabilities or None.
        """
        found: Any = self.model.apply(
            variables, batch, head=self.head, decoding=self.decoding, gives_log_probs=gives_log_probs, method="search"
        )
        return found

    def prepare(self, found: Any) -> None:
        """Compiles the stage on the host for outputs of these shapes."""
        if self.stage:
            self.stage.prepare(found)

    def sequences(self, found: Any, rows: Sequence[int]) -> list[list[TokenSequence]]:
        """Returns the n-best lists of some rows of a batch; with several shares, of rows of one share at most."""
        lists: TimedTokens
        if self.stage:
            with jax.profiler.TraceAnnotation(self.stage.name):
                lists, rows = self.stage(found, rows), range(len(rows))
        else:
            lists = jax.device_get(found)
        sequences = [lists.sequences(row) for row in rows]
        if without_score := sum(not math.isfinite(hypotheses[0].score) for hypotheses in sequences):
            print(
                f"{without_score} of {len(sequences)} recordings of a batch have no finite score and get empty texts, "
                "because their log-probabilities are NaN or infinite; use another checkpoint, or --precision f32",
                file=sys.stderr,
            )
        return sequences

    def share(self, rows: Int[np.ndarray, " R"]) -> Int[np.ndarray, " S"]:
        """Returns those rows of a batch that this process searches."""
        return rows[self._share :: self.num_shares]

    def transcript(self, hypotheses: Sequence[TokenSequence], *, first_frame: int = 0) -> Transcript:
        """Returns the transcript of an n-best list, best first. `first_frame`: where in the recording it begins."""
        return self.writer.transcript(hypotheses, lists_n_best=self.decoding.gives_n_best, first_frame=first_frame)


class Emitted(NamedTuple):
    """Output of the device for a batch."""

    found: Any
    """Result of the search: `TimedTokens`, or the input of its stage on the host."""
    log_probs: Frames | None
    """Log-probabilities of the head [B T V]; None if they were not requested."""
    weights: Float[Array, " B"]
    """0 for padding rows and for rows that cannot be read."""
    utterances: Int[Array, " B"]
    """Index row of each utterance."""


class Decoder:
    """The compiled model with the search of one head.

    Each shape of batches is compiled once, in the background by `prepare`.
    """

    def __init__(
        self,
        model: Recogniser,
        tokenizer: Tokenizer,
        *,
        mesh: Mesh,
        variables: Tree,
        decoding: Decoding,
        calibration: Calibration | None = None,
        head: str = "",
        gives_log_probs: bool = False,
        programs: Programs = TRACED,
        num_shares: int | None = None,
    ) -> None:
        """Initialises without compiling.

        Args:
            tokenizer: Tokenizer of the head's labels.
            variables: Variables of the model, or their shapes.
            calibration: Calibration of word confidences. None: none is applied.
            head: Name of the head. Empty: the primary head.
            num_shares: Number of processes that share the rows of a batch. None: all processes.

        Raises:
            UserError: If the head has no log-probabilities, or as `HeadSearch` does.
        """
        self.model, self.tokenizer, self.mesh = model, tokenizer, mesh
        self.head = head or model.recognising
        if gives_log_probs and not model.heads[self.head].aligns:
            raise UserError(f"head {self.head} has no log-probabilities of CTC: expected a CTC head")
        self.search = HeadSearch(
            model,
            tokenizer,
            head=self.head,
            decoding=decoding,
            calibration=calibration,
            num_shares=jax.process_count() if num_shares is None else num_shares,
        )
        self._remade = functools.partial(
            Decoder,
            model,
            tokenizer,
            variables=variables,
            decoding=decoding,
            calibration=calibration,
            head=head,
            gives_log_probs=gives_log_probs,
            programs=programs,
        )
        self._gives_log_probs = gives_log_probs
        self._variables = abstract_on(variables, mesh)
        self._fetch: Callable[[Tree], Tree] | None = None
        self.programs = ByShape(
            f"decode_{self.head}{'_log_probs' * gives_log_probs}",
            self._emit,
            variables,
            mesh=mesh,
            programs=programs.given(decoding=decoding, head=self.head, gives_log_probs=gives_log_probs),
            then=lambda outputs: self.search.prepare(outputs[0]),
        )

    @functools.cached_property
    def of_this_process(self) -> "Decoder":
        """This decoder on the devices of this process alone; the same one if there are no other processes."""
        return self if jax.process_count() == 1 else self._remade(mesh=own_mesh(), num_shares=1)

    def fetching(self) -> Callable[[Tree], Tree]:
        """Returns a function that copies variables that are spread over devices to each of them.

        The first call compiles. All processes must call this function, and the returned one, together.
        """
        if self._fetch is None:
            is_spread = any(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(self._variables))
            self._fetch = lambda variables: variables
            if is_spread and jax.process_count() > 1:
                copied = jax.jit(lambda variables: variables, out_shardings=replicated(self.mesh))
                self._fetch = copied.lower(self._variables).compile()
        return self._fetch

    @property
    def calibration(self) -> Calibration | None:
        return self.search.writer.calibration

    def prepare(self, buckets: Iterable[Bucket], scale: Scale) -> None:
        """Starts to compile for the shapes of buckets."""
        self.programs.prepare(without_labels(abstract_batch(bucket, self.mesh, scale)) for bucket in buckets)

    def lower(self, bucket: Bucket, scale: Scale) -> Program:
        """Lowers the model with the search for the shape of a bucket."""
        return self.programs.lower(without_labels(abstract_batch(bucket, self.mesh, scale)))

    def wait(self) -> None:
        """Waits until all prepared shapes are compiled."""
        self.programs.wait()

    def __call__(self, variables: Tree, batch: Batch) -> Emitted:
        """Runs the model on a global batch without labels. The result may still be being computed."""
        return Emitted(*self.programs(variables, batch))

    def finish(self, emitted: Emitted) -> dict[int, Transcript]:
        """Returns the transcripts of all rows that were read, by index row.

        With a stage on the host and several processes, these are the rows of this process's share; `whole` combines
        the shares.
        """
        weights, utterances = jax.device_get((emitted.weights, emitted.utterances))
        rows = self.search.share(np.flatnonzero(weights > 0))
        found = self.search.sequences(emitted.found, rows.tolist())
        return dict(zip(utterances[rows].tolist(), map(self.search.transcript, found), strict=True))

    def whole(self, transcripts: dict[int, Transcript]) -> dict[int, Transcript]:
        """Combines the results of `finish` of all processes. All of them must call it."""
        return transcripts if self.search.num_shares == 1 else whole_transcripts(transcripts)

    def _emit(self, variables: Tree, batch: Batch) -> tuple[Any, Frames | None, Float[Array, " B"], Int[Array, " B"]]:
        found, log_probs = self.search(variables, batch, gives_log_probs=self._gives_log_probs)
        return found, log_probs, batch.weights, batch.utterances


def whole_transcripts(transcripts: dict[int, Transcript]) -> dict[int, Transcript]:
    """Combines the transcripts of all processes by row. All of them must call it."""
    shares = gathered([[row, asdict(transcript)] for row, transcript in transcripts.items()])
    return {row: Transcript.of(values) for share in shares for row, values in share}


def without_labels(batch: Batch) -> Batch:
    """Returns the batch with label arrays of width 0: decoding must not be compiled for each number of labels."""

    def empty(labels: Any) -> Any:
        shape = (labels.shape[0], 0)
        if isinstance(labels, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(shape, labels.dtype, sharding=labels.sharding)
        return labels[:, :0]

    return batch.replace(tokens=empty(batch.tokens))
