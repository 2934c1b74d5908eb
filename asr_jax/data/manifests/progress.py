"""Parallel work on many items in threads or processes, with a progress bar."""

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
"""Number of items from which a progress bar is shown."""
MOST_THREADS = 16
AT_ONCE = 64
"""Items per task. For a million items, single tasks would take more time and memory than the work."""


def in_threads[T, R](work: Callable[[T], R], items: Sequence[T], what: str) -> list[R]:
    """Applies `work` to each item in threads.

    Args:
        work: Function of an item.
        what: Name of the items in the progress bar.

    Returns:
        Results in the order of the items.
    """
    parts = itertools.batched(items, AT_ONCE)
    with ThreadPoolExecutor(min(2 * (os.cpu_count() or 1), MOST_THREADS)) as pool:
        done = pool.map(lambda part: [work(item) for item in part], parts)
        return list(with_bar(itertools.chain.from_iterable(done), len(items), what))


def in_processes[T, R](work: Callable[[T], R], parts: Sequence[T], what: str) -> list[R]:
    """Applies `work` to each part in as many processes as there are cores.

    If the processes cannot start, this process does the work. This happens if a script does not guard its top level by
    `if __name__ == "__main__"`, because each process then runs the script again.

    Args:
        work: Function of a part.
        what: Name of the items in the progress bar.

    Returns:
        Results in the order of the parts.
    """
    try:
        context = multiprocessing.get_context("spawn")  # JAX's threads do not survive a fork
        with ProcessPoolExecutor(min(os.cpu_count() or 1, len(parts)), mp_context=context) as pool:
            return list(with_bar(pool.map(work, parts), len(parts), what, shown_from=2))
    except BrokenProcessPool:
        return [work(part) for part in with_bar(parts, len(parts), what, shown_from=2)]


def with_bar[T](items: Iterable[T], total: int | None, what: str, *, shown_from: int = SHOWN_FROM) -> Iterable[T]:
    """Returns the items, with a progress bar on the terminal if there are many.

    Args:
        items: Items to iterate over.
        total: Number of items. None: unknown; the bar counts the items.
        what: Name of the items in the progress bar.
        shown_from: Smallest total for which a bar is shown.
    """
    if (total is not None and total < shown_from) or not sys.stderr.isatty():
        return items
    return track(items, description=f"reading {what}", total=total, console=Console(stderr=True), transient=True)
