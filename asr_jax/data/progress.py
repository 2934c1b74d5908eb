"""Work on many items, in threads, with a bar of progress where there are many."""

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.progress import track

SHOWN_FROM = 1000
"""Items from which on a bar is shown."""
MOST_THREADS = 16
AT_ONCE = 64
"""Items of one task: a task for each of a million would take more time and memory than the work."""


def in_threads[T, R](work: Callable[[T], R], items: Sequence[T], what: str) -> list[R]:
    """`work` of each, in order."""
    parts = itertools.batched(items, AT_ONCE)
    with ThreadPoolExecutor(min(2 * (os.cpu_count() or 1), MOST_THREADS)) as pool:
        done = pool.map(lambda part: [work(item) for item in part], parts)
        return list(with_bar(itertools.chain.from_iterable(done), len(items), what))


def with_bar[T](items: Iterable[T], total: int, what: str) -> Iterable[T]:
    """The items, with a bar of progress on the terminal where there are many."""
    if total < SHOWN_FROM or not sys.stderr.isatty():
        return items
    return track(items, description=f"reading {what}", total=total, console=Console(stderr=True), transient=True)
