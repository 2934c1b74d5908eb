"""Batches of shards that are read one after the other, without an index of their items (`data.order` sharded).

A window of items is in memory. A batch takes random ones of it, and the next items of the shards replace them. A
batch depends on all that was read before it; `State` is what exact resumption needs: the place in the shards, and the
places of the items in the window.
"""

import functools
import queue
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int32

from asr_jax.audio.io import AudioError, Remarks
from asr_jax.core.batch import Batch
from asr_jax.core.environment import READING_THREADS
from asr_jax.core.errors import UserError
from asr_jax.core.layout import Layout
from asr_jax.core.names import counted
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.buckets import Bucket, Scale, first_fit, perturbed_lengths, room_of
from asr_jax.data.batching.filters import Filters, violations
from asr_jax.data.batching.index import FramesNeeded, OutputLength
from asr_jax.data.loading.source import LoadedBatch, check_room, used_part
from asr_jax.data.manifests.durations import joined_remarks
from asr_jax.data.manifests.items import Item, from_place, read_patiently
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.storage import Storage
from asr_jax.data.manifests.utterances import Rejected, Stage, Utterance
from asr_jax.text.tokenizers import OutOfVocabulary, Tokenizer

_ORDER, _BUCKET, _ROWS = 21, 22, 23  # ids of the random streams
_DRAWS = 64
"""Number of batches of several processes whose buckets are drawn together, each as often as its share says, in random
order. With independent draws, the composition of windows would drift, and more rows would stay empty."""


@dataclass(frozen=True)
class Stream:
    """Settings of a stream of batches."""

    shards: tuple[str, ...]
    """Paths of all shards, those of other processes too."""
    buckets: tuple[Bucket, ...]
    """Shapes of the batches, in ascending order of length and number of labels."""
    shares: Float64[np.ndarray, " K"]
    """Share of each bucket in the batches, of which several processes draw the shape of each batch."""
    scale: Scale
    layout: Layout
    tokenizer: Tokenizer | None
    """None: no labels."""
    filters: Filters
    output_length: OutputLength
    frames_needed: FramesNeeded
    takes_ids: bool = False
    """Whether token ids of the shards are labels."""
    speeds: tuple[float, ...] = (1.0,)
    """Playback speeds, of which one is drawn for each item in each epoch."""
    window: int = 2048
    """Number of items in memory that batches are drawn from."""
    seed: int = 0
    epochs: int | None = None
    """Number of epochs. None: no end."""
    threads: int = READING_THREADS
    storage: Storage = field(default_factory=Storage)
    options: ReadOptions = field(default_factory=ReadOptions)

    def __post_init__(self) -> None:
        if len(self.shards) < self.layout.num_processes:
            raise UserError(
                f"{len(self.shards)} shards for {self.layout.num_processes} processes: expected a shard or more for "
                "each process, since each reads its own"
            )
        rows = max(len(self.layout.places(bucket.batch_size)) for bucket in self.buckets)
        if self.window < rows:
            raise UserError(
                f"data.shuffle_window is {self.window}, and a batch has {rows} rows on each process: expected at least "
                "as many items in memory; several times as many fill more rows"
            )


def shares_of(plan: BatchPlan) -> Float64[np.ndarray, " K"]:
    """Share of each bucket in the batches, for the plan of a sample: its items divided by the rows of a batch."""
    batches = np.array(plan.entries_by_bucket()) / [bucket.batch_size for bucket in plan.buckets]
    return batches / batches.sum()


@dataclass(frozen=True)
class State:
    """State of a process's stream before a batch, as JSON values."""

    step: int = 0
    """Number of batches so far."""
    epoch: int = 0
    shard: int = 0
    """Number of the shard among those of the process in this epoch."""
    place: int = 0
    """Place of the last item that was read in the shard, as in `Item`; the next one follows it."""
    num_read: int = 0
    """Number of items of the shard that are read."""
    held: tuple[tuple[int, int], ...] = ()
    """Shard (as its number in `Stream.shards`) and place of each item in the window."""


class _Member(NamedTuple):
    """An item in the window, with the bucket that it fits at its slowest speed."""

    shard: int
    item: Item
    length: int
    labels: Int32[np.ndarray, " U"]
    bucket: int


class ShardReader:
    """Items of the shards of a process in their order: place, retries, and rejected ones."""

    def __init__(self, stream: Stream, state: State) -> None:
        self._stream, self.rejected = stream, list[Rejected]()
        self.epoch, self.shard, self.place, self.num_read = state.epoch, state.shard, state.place, state.num_read
        self._items: Iterator[Item] | None = None
        self._has_used = bool(state.step)

    def shards_of(self, epoch: int) -> list[int]:
        """Numbers of the shards of this process in an epoch, in order."""
        order = np.random.default_rng((self._stream.seed, _ORDER, epoch)).permutation(len(self._stream.shards))
        return order[self._stream.layout.process_index :: self._stream.layout.num_processes].tolist()

    def next(self) -> _Member | None:
        """The next item that is not rejected; None after the last epoch.

        Raises:
            UserError: If all items of an epoch are rejected: there would be no end.
        """
        while self._stream.epochs is None or self.epoch < self._stream.epochs:
            own = self.shards_of(self.epoch)
            if self.shard == len(own):
                if not self._has_used:
                    raise UserError(self._unusable(len(own)))
                self.epoch, self.shard, self._has_used = self.epoch + 1, 0, False
                continue
            path = self._stream.shards[own[self.shard]]
            try:
                if self._items is None:
                    places, options = from_place(self.place), self._stream.options
                    self._items = read_patiently(path, places, options, self._stream.storage)
                    if self.num_read:
                        next(self._items, None)  # the item at this place
                item = next(self._items, None)
            except AudioError as error:
                self.rejected.append(Rejected(path, path, f"the rest of the shard: {error.reason}", "audio"))
                item = None
            if item is None:
                self._items, self.shard, self.place, self.num_read = None, self.shard + 1, 0, 0
                continue
            self.place, self.num_read = item.place, self.num_read + 1
            if member := member_of(self._stream, own[self.shard], item, self.rejected):
                self._has_used = True
                return member
        return None

    def _unusable(self, num_shards: int) -> str:
        return (
            f"no item of the {counted(num_shards, 'shard')} of this process can be used; the last ones:\n"
            + "\n".join(entry.line for entry in self.rejected[-3:])
        )


def member_of(stream: Stream, shard: int, item: Item, rejected: list[Rejected]) -> _Member | None:
    """Checks an item; returns None and adds it to `rejected` if it is not used."""
    entry = item.entry
    if isinstance(entry, Rejected):
        rejected.append(entry)
        return None
    stage: Stage = "audio"
    try:
        length, duration_s = _length(stream, item, entry)
        stage = "filter"
        labels = _labels(stream, entry)
        _check(stream, entry, length, duration_s, labels)
        slowest = perturbed_lengths(np.array([length]), (min(stream.speeds),))
        bucket = int(first_fit(slowest, np.array([len(labels)]), *room_of(stream.buckets))[0])
        if bucket == len(stream.buckets):
            there = f"{length / stream.scale.per_s:.2f} s and {len(labels)} labels"
            raise AudioError(entry.location, f"fits no bucket: {there}")
    except AudioError as error:
        rejected.append(Rejected(entry.id, entry.location, error.reason, stage))
        return None
    return _Member(shard, item, length, labels, bucket)


def _length(stream: Stream, item: Item, entry: Utterance) -> tuple[int, float]:
    """Length in units of the scale, and duration in seconds."""
    scale = stream.scale
    if scale.of_features != bool(entry.num_frames):
        raise AudioError(entry.location, f"expected {'ready features' if scale.of_features else 'audio'}")
    if entry.num_frames:
        return entry.num_frames, entry.num_frames / scale.per_s
    duration_s = entry.duration_s
    if np.isnan(duration_s):
        duration_s = item.read(Location.info, stream.storage).duration_s
    return round(duration_s * scale.per_s), duration_s


def _labels(stream: Stream, entry: Utterance) -> Int32[np.ndarray, " U"]:
    if stream.tokenizer is None:
        return np.zeros(0, np.int32)
    if stream.takes_ids and entry.labels is not None:
        return np.array(entry.labels, np.int32)
    try:
        labels = np.array(stream.tokenizer.encode(entry.text), np.int32)
    except OutOfVocabulary as error:
        raise AudioError(entry.location, f"out of vocabulary: {error}") from None
    if not len(labels):
        raise AudioError(entry.location, "empty text")
    return labels


def _check(stream: Stream, entry: Utterance, length: int, duration_s: float, labels: np.ndarray) -> None:
    """Checks the limits of an item.

    Raises:
        AudioError: If it is outside of a limit.
    """
    filters = stream.filters if stream.tokenizer else stream.filters.of_audio()
    for found in violations(np.array([duration_s]), np.array([len(entry.text)]), filters):
        raise AudioError(entry.location, f"{found.reason} ({found.values[0]:g}, needs {found.limit:g})")
    if stream.tokenizer:
        frames = int(stream.output_length(np.array([round(length / max(stream.speeds))]))[0])
        needed = int(stream.frames_needed(len(labels), int((labels[1:] == labels[:-1]).sum())))
        if frames < needed:
            raise AudioError(entry.location, f"fewer frames than its labels need ({frames}, needs {needed})")


class ShardedBatches:
    """Iterator over the batches of a process from a state on; each has the state after it."""

    def __init__(self, stream: Stream, state: State) -> None:
        self._stream, self._step, self._reader = stream, state.step, ShardReader(stream, state)
        self._window = self._held(state)
        self._pool = ThreadPoolExecutor(stream.threads)

    def _held(self, state: State) -> list[_Member]:
        """The items in the window of a state, in its order."""
        members, of_shard = dict[tuple[int, int], _Member](), defaultdict[int, set[int]](set)
        for shard, place in state.held:
            of_shard[shard].add(place)
        for shard, places in of_shard.items():
            for member in self._members_at(shard, sorted(places)):
                members[shard, member.item.place] = member
        return [members[held] for held in state.held]

    def _members_at(self, shard: int, places: Sequence[int]) -> Iterator[_Member]:
        """Items of a shard at places in ascending order.

        Raises:
            UserError: If there is no such item.
        """
        path, rejected = self._stream.shards[shard], list[Rejected]()
        items = read_patiently(path, places, self._stream.options, self._stream.storage)
        for place in places:
            item = next(items, None)
            member = item and member_of(self._stream, shard, item, rejected)
            if not member or member.item.place != place:
                reason = rejected[0].line if rejected else f"it has no item at {place}"
                raise UserError(f"{path} has changed since the checkpoint: {reason}")
            yield member

    def __iter__(self) -> Iterator[LoadedBatch]:
        while True:
            while len(self._window) < self._stream.window and (member := self._reader.next()):
                self._window.append(member)
            if not self._window:
                return
            yield self._batch()

    def state(self) -> State:
        held = tuple((each.shard, each.item.place) for each in self._window)
        reader = self._reader
        return State(self._step, reader.epoch, reader.shard, reader.place, reader.num_read, held)

    def _batch(self) -> LoadedBatch:
        stream, step = self._stream, self._step
        rng = np.random.default_rng((stream.seed, _ROWS, stream.layout.process_index, step))
        number = self._bucket(rng)
        bucket = stream.buckets[number]
        places = np.flatnonzero(stream.layout.places(bucket.batch_size) >= 0)
        chosen = self._chosen(number, len(places), rng)
        members = [self._window[place] for place in chosen]
        speeds = rng.choice(stream.speeds, len(members))
        taken = set(chosen)
        self._window = [each for place, each in enumerate(self._window) if place not in taken]
        self._step += 1
        batch, rejected, differing = self._loaded(bucket, places, members, speeds)
        rejected, self._reader.rejected = self._reader.rejected + rejected, []
        ids = tuple(each.item.entry.id for each in members)
        return LoadedBatch(batch, step, number, tuple(rejected), tuple(differing), ids, vars(self.state()))

    def _bucket(self, rng: np.random.Generator) -> int:
        """Number of the next bucket.

        One process draws it in proportion to the full batches in its window, which keeps the composition of the window
        that of the shards. Several processes draw the same one from the shares, without messages.
        """
        num = len(self._stream.buckets)
        if self._stream.layout.num_processes == 1:
            rows = np.array([bucket.batch_size for bucket in self._stream.buckets])
            there = np.bincount([each.bucket for each in self._window], minlength=num)
            weights = there // rows if (there >= rows).any() else there / rows
            return int(rng.choice(num, p=weights / weights.sum()))
        block, place = divmod(self._step, _DRAWS)
        common = np.random.default_rng((self._stream.seed, _BUCKET, block))
        drawn = np.searchsorted(np.cumsum(self._stream.shares), (np.arange(_DRAWS) + common.random()) / _DRAWS)
        return int(common.permutation(np.minimum(drawn, num - 1))[place])

    def _chosen(self, number: int, num_rows: int, rng: np.random.Generator) -> list[int]:
        """Places in the window of random items of a bucket; if there are too few, of shorter ones that fit it."""
        order = rng.permutation(len(self._window)).tolist()
        fit = [place for place in order if self._window[place].bucket <= number and self._fits(place, number)]
        fit.sort(key=lambda place: -self._window[place].bucket)  # stable: random within a bucket
        return fit[:num_rows]

    def _fits(self, place: int, number: int) -> bool:
        return len(self._window[place].labels) <= self._stream.buckets[number].num_tokens

    def _loaded(
        self, bucket: Bucket, places: np.ndarray, members: Sequence[_Member], speeds: np.ndarray
    ) -> tuple[Batch, list[Rejected], list[Rejected]]:
        """The batch, rejected items, and items with remarks on their audio."""
        scale, num = self._stream.scale, len(self._stream.layout.places(bucket.batch_size))
        shape, dtype = ((scale.num_values,), np.float32) if scale.of_features else ((), np.int16)
        signals, tokens = np.zeros((num, bucket.length, *shape), dtype), np.zeros((num, bucket.num_tokens), np.int32)
        lengths, token_lengths, rows = np.zeros(num, np.int32), np.zeros(num, np.int32), np.full(num, -1, np.int32)
        weights, rejected, differing = np.zeros(num, np.float32), list[Rejected](), list[Rejected]()
        found = self._pool.map(functools.partial(self._signal, bucket.length), members, speeds.tolist())
        for i, member, read in zip(places, members, found, strict=False):
            entry = member.item.entry
            if isinstance(read, Rejected):
                rejected.append(read)
                continue
            signal, differs = read
            if differs:
                differing.append(Rejected(entry.id, entry.location, differs, "used"))
            signals[i, : len(signal)], lengths[i], weights[i] = signal, len(signal), 1
            tokens[i, : len(member.labels)], token_lengths[i] = member.labels, len(member.labels)
            name = f"{self._stream.shards[member.shard]}:{member.item.place}"
            rows[i] = zlib.crc32(name.encode()) & 0x7FFFFFFF
        audio, features = (None, signals) if scale.of_features else (signals, None)
        return Batch(audio, features, lengths, tokens, token_lengths, weights, rows), rejected, differing

    def _signal(self, room: int, member: _Member, speed: float) -> tuple[np.ndarray, str] | Rejected:
        """Signal as in `BatchSource`, with the remarks on its audio; or why there is none."""
        stream, item, per_s = self._stream, member.item, self._stream.scale.per_s
        location = item.entry.location
        try:
            if stream.scale.of_features:
                features = item.read(Location.features, stream.storage)
                check_room(features, room, location)
                return features, ""
            remarks, place = Remarks(), Location.parse(location)
            options = {"rate_hz": int(per_s), "speed": speed, "remarks": remarks}
            samples = item.read(Location.audio, stream.storage, **options)
            samples, differs = used_part(samples, place, speed=speed, length=member.length, room=room, per_s=per_s)
            assert isinstance(item.entry, Utterance)
            return samples, joined_remarks(item.entry, remarks, differs)
        except AudioError as error:
            return Rejected(item.entry.id, location, error.reason, "audio")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def open_sharded(
    stream: Stream, state: dict[str, Any] | None = None, *, start: int = 0, read_ahead: int = 4
) -> Iterator[Iterator[LoadedBatch]]:
    """Opens an iterator over the batches of this process, which a thread reads ahead.

    Args:
        state: `LoadedBatch.state` of the last batch that was used. None: the beginning.
    """
    before = State() if state is None else State(**state | {"held": tuple(map(tuple, state["held"]))})
    batches, ready, is_closed = ShardedBatches(stream, before), queue.Queue[Any](read_ahead), threading.Event()

    def work() -> None:
        last: Any = None
        try:
            start_s = time.perf_counter()
            for loaded in batches:
                if not _put(ready, replace(loaded, loading_s=time.perf_counter() - start_s), is_closed):
                    return
                start_s = time.perf_counter()
        except BaseException as error:
            last = error
        _put(ready, last, is_closed)

    def found() -> Iterator[LoadedBatch]:
        for position, loaded in enumerate(iter(ready.get, None), start):
            if isinstance(loaded, BaseException):
                raise loaded
            yield LoadedBatch(**vars(loaded) | {"position": position})

    threading.Thread(target=work, daemon=True).start()
    try:
        yield found()
    finally:
        is_closed.set()
        batches.close()


def _put(ready: "queue.Queue[Any]", value: Any, is_closed: threading.Event) -> bool:
    """Puts a value into a queue unless it is closed; returns whether it did."""
    while not is_closed.is_set():
        try:
            ready.put(value, timeout=0.2)
        except queue.Full:
            continue
        return True
    return False
