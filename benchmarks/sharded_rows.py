"""Rows that stay empty with `data.order` sharded, by processes: `python benchmarks/sharded_rows.py [--json OUT]`.

Simulates the windows of `data.loading.sharded` with the durations of `made_up.durations_s`, without audio. Processes
draw the buckets of their batches from a common stream, and each has a window and shards of its own: up to --simulated
of them are simulated, and the shares are their means. A batch has --seconds of padded audio for each process. Shares
are given between several steps, since windows drift from the composition that they begin with.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.layout import Layout
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.buckets import Entries, make_buckets
from asr_jax.data.batching.dataset import MORE_ITEMS, Data
from asr_jax.data.batching.filters import Filters
from asr_jax.data.batching.index import scale_of
from asr_jax.data.loading.sharded import ShardedBatches, State, Stream, shares_of
from asr_jax.data.manifests import items
from asr_jax.data.manifests.items import Item
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.observe.tables import print_table
from benchmarks import made_up

SCALE, EACH = scale_of(KaldiFbank(), of_features=False), 1000


def items_at(path: str, places: range, options: ReadOptions) -> Iterator[Item]:
    """Items of a shard that is only a number."""
    for number, seconds in enumerate(made_up.durations_s(EACH, seed=int(path)).tolist()):
        if number >= places.start:
            yield Item(number, Utterance(id="", location=path, text="", duration_s=seconds), b"")


class Counted(ShardedBatches):
    """Batches of which only the rows are counted."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream, State())
        self.rows, self.used, self.room, self.filled = 0, 0, 0, 0

    def _loaded(self, bucket: Any, places: Any, members: Any, speeds: Any) -> Any:
        self.rows, self.used = self.rows + len(places), self.used + len(members)
        self.room += len(places) * bucket.length
        self.filled += sum(member.length for member in members)
        return None, [], []

    def state(self) -> State:
        return State()


def shares(processes: int, window: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Shares of empty rows and of padding between the steps, over the simulated ones of a number of processes."""
    lengths = made_up.lengths(given.sampled)
    entries = Entries(lengths, np.zeros(len(lengths), np.int32), SCALE)
    settings = Batching.planned(num_buckets=given.buckets, seconds=given.seconds * processes)
    plan = BatchPlan(entries, make_buckets(entries, settings, weights=np.full(len(lengths), MORE_ITEMS)))
    found = np.zeros((len(given.steps) + 1, 4), np.int64)
    numbers = range(min(processes, given.simulated))
    for process in numbers:
        stream = Stream(
            shards=tuple(str(number) for number in range(1, 1 + 16 * processes)), buckets=plan.buckets,
            shares=shares_of(plan), scale=SCALE, layout=Layout(processes, 1, 1, process, processes), tokenizer=None,
            filters=Filters.none(), output_length=lambda n: n, frames_needed=np.add, window=window,
        )  # fmt: skip
        batches = Counted(stream)
        for step, _ in enumerate(batches, 1):
            if step in given.steps:
                found[given.steps.index(step) + 1] += batches.rows, batches.used, batches.room, batches.filled
            if step == given.steps[-1]:
                break
        batches.close()
    rows = [{"processes": processes, "window": window, "sampled": len(lengths), "simulated": len(numbers)}]
    for first, last, counts in zip((0, *given.steps), given.steps, np.diff(found, axis=0).tolist(), strict=False):
        of_rows, used, room, filled = counts
        shown = {"empty_share": 1 - used / of_rows, "padding_share": 1 - filled / room}
        rows.append(rows[0] | {"after": first, "until": last} | shown)
    return rows[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 8, 64])
    parser.add_argument("--windows", type=int, nargs="+", default=[Data.shuffle_window])
    parser.add_argument("--sampled", type=int, default=Data.sampled_items, help="items that the shares are found from")
    parser.add_argument("--simulated", type=int, default=1, help="largest number of processes that are simulated")
    parser.add_argument("--steps", type=int, nargs="+", default=[2000, 4000, 8000, 16000], help="ascending")
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--buckets", type=int, default=8)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    with mock.patch.object(items, "items_at", items_at):
        for window in given.windows:
            for processes in given.processes:
                found = shares(processes, window, given)
                rows += found
                print("\n".join(map(json.dumps, found)), flush=True)
    print_table(rows, title="rows of shards")
    if given.json:
        about = {"seconds": given.seconds, "buckets": given.buckets}
        given.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
