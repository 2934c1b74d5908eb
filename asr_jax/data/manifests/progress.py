"""Parallel work on many items in threads or processes, with a progress bar."""

import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress

from rich.console import Console
from rich.progress import track

SHOWN_FROM = 1000
"""Number of items from which a progress bar is shown."""
MOST_THREADS = 16
AT_ONCE = 64
"""Items per task. For a million items, single tasks would take more time and memory than the work."""
ROWS_PER_PART = 50_000
"""Rows of columns per part of the work on them."""
IN_PROCESSES_FROM = 200_000
"""Number of rows from which processes share the work. Processes take a second to start."""


def in_threads[T, R](work: Callable[[T], R], items: Sequence[T], what: str) -> list[R]:
    """Applies `work` to each item in threads; returns the results in the order of the items."""
    parts = itertools.batched(items, AT_ONCE)
    with ThreadPoolExecutor(min(2 * (os.cpu_count() or 1), MOST_THREADS)) as pool:
        done = pool.map(lambda part: [work(item) for item in part], parts)
        return list(with_bar(itertools.chain.from_iterable(done), len(items), what))


def in_parts[R](work: Callable[[range], R], num: int, what: str, *, are_cached: bool) -> list[R]:
    """Applies `work` to parts of the rows of columns; if there are many, in as many processes as there are cores.

    If the processes cannot start, this process does the work. This happens if a script does not guard its top level by
    `if __name__ == "__main__"`, because each process then runs the script again.

    Args:
        are_cached: Whether the columns are cached. Only these are sent to processes, as file names.

    Returns:
        Results in the order of the rows, at least one.
    """
    parts = [range(num)[first : first + ROWS_PER_PART] for first in range(0, max(num, 1), ROWS_PER_PART)]
    with suppress(BrokenProcessPool):
        if are_cached and num >= IN_PROCESSES_FROM:
            context = multiprocessing.get_context("spawn")  # JAX's threads do not survive a fork
            with ProcessPoolExecutor(min(os.cpu_count() or 1, len(parts)), mp_context=context) as pool:
                return list(with_bar(pool.map(work, parts), len(parts), what, shown_from=2))
    return [work(part) for part in with_bar(parts, len(parts), what, shown_from=2)]


def with_bar[T](items: Iterable[T], total: int | None, what: str, *, shown_from: int = SHOWN_FROM) -> Iterable[T]:
    """Returns the items, with a progress bar on the terminal if there are at least `shown_from`."""
    if (total is not None and total < shown_from) or not sys.stderr.isatty():
        return items
    return track(items, description=f"reading {what}", total=total, console=Console(stderr=True), transient=True)
