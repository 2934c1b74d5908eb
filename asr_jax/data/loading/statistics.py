"""Mean and standard deviation of each bin of a front-end over a data set."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.stages import Normalise, NormaliseByDataSet
from asr_jax.core.errors import UserError
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.buckets import make_buckets
from asr_jax.data.batching.filters import Filters
from asr_jax.data.batching.index import build_index, scale_of
from asr_jax.data.loading.extraction import Extractor, features_of
from asr_jax.data.loading.source import BatchSource, open_batches
from asr_jax.data.manifests.progress import with_bar
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.data.manifests.utterances import Rejected

LONGEST_S = 600.0
"""Maximum duration of an utterance in seconds."""


def before_normalisation(front_end: FrontEnd) -> FrontEnd:
    """Front-end up to its first normalisation, without dither."""
    place = next(
        (n for n, stage in enumerate(front_end.then) if isinstance(stage, Normalise | NormaliseByDataSet)),
        len(front_end.then),
    )
    return replace(front_end, then=front_end.then[:place], dither=0.0)


def bin_statistics(
    paths: Sequence[str], front_end: FrontEnd, *, max_hours: float = 0.0, workers: int = 0, allow_pipes: bool = False
) -> tuple[NormaliseByDataSet, int, list[Rejected]]:
    """Statistics of each bin over all frames, summed in float64.

    Args:
        paths: Manifests, folders and glob patterns of audio.
        max_hours: Approximate amount of audio in hours, spread evenly over the set. 0: all.
        workers: Number of processes that read audio. 0: threads of this process read it.
        allow_pipes: Whether commands in the place of files are run.

    Returns:
        Normalisation with the statistics, number of frames, and utterances that could not be read or have another
        duration than in the manifest (stage `used`).

    Raises:
        UserError: If there are ready features, if no audio can be read, or if a bin is constant.
    """
    front_end = before_normalisation(front_end)
    utterances = read_utterances(paths, options=ReadOptions(allow_pipes=allow_pipes))
    if utterances.columns.num_frames[utterances.rows].any():
        raise UserError(f"{', '.join(paths)}: contains ready features; expected audio as input of the front-end")
    build = partial(
        build_index,
        scale=scale_of(front_end, of_features=False),
        tokenizer=None,
        filters=replace(Filters.none(), max_duration_s=LONGEST_S),
    )
    index, _ = build(utterances)
    if max_hours and (every := round(index.hours / max_hours)) > 1:
        index, _ = build(utterances.select(np.arange(len(utterances)) % every == 0))
    batching = Batching(num_buckets=min(12, 1 + len(index) // 50), budget=120.0, row_multiple=1)
    plan = BatchPlan(index.entries(), make_buckets(index.entries(), batching), is_shuffled=False)
    num = plan.batches_per_epoch
    total, squares = np.zeros((2, front_end.num_features))
    count, rejected = 0, list[Rejected]()
    with open_batches(BatchSource(index, plan), stop=num, workers=workers) as batches:
        loaded = with_bar(batches, num, "batches")
        for _, frames in features_of(loaded, Extractor.of_front_end(front_end), rejected):
            total += frames.sum(0, dtype=np.float64)
            squares += np.square(frames, dtype=np.float64).sum(0)
            count += len(frames)
    if count < 2:
        raise UserError(f"{', '.join(paths)}: no audio could be read, or it has fewer than two frames")
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - np.square(mean), 0.0))
    if not deviation.all():
        raise UserError(
            f"bin {int(np.argmin(deviation))} has the same value in all {count:,} frames: check that the audio is not "
            "silent"
        )
    return NormaliseByDataSet(tuple(mean.tolist()), tuple(deviation.tolist())), count, rejected
