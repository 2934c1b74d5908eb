"""Work on many items, in threads or processes, with a bar of progress where there are many."""

import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

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


def in_processes[T, R](work: Callable[[T], R], parts: Sequence[T], what: str) -> list[R]:
    """`work` of each part, in order, in as many processes as there are cores; in this one where they cannot start: a
    script that does not guard its top level by `if __name__ == "__main__"` is run again by each.
    """
    try:
        context = multiprocessing.get_context("spawn")  # threads are running, and JAX's do not survive a fork
        with ProcessPoolExecutor(min(os.cpu_count() or 1, len(parts)), mp_context=context) as pool:
            return list(with_bar(pool.map(work, parts), len(parts), what, shown_from=2))
    except BrokenProcessPool:
        return [work(part) for part in with_bar(parts, len(parts), what, shown_from=2)]


def with_bar[T](items: Iterable[T], total: int | None, what: str, *, shown_from: int = SHOWN_FROM) -> Iterable[T]:
    """The items, with a bar of progress on the terminal where there are many; without a total, with their number."""
    if (total is not None and total < shown_from) or not sys.stderr.isatty():
        return items
    return track(items, description=f"reading {what}", total=total, console=Console(stderr=True), transient=True)
