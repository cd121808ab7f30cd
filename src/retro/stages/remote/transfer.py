"""Several files on their way at once."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from retro.stages.progress import Narrator

AT_ONCE = 8

Item = TypeVar("Item")


def transfer(narrator: Narrator, title: str, move: Callable[[Item], int], items: Iterable[Item]) -> None:
    """Move every item, and tell how many bytes are through; `move` gives those of one."""
    waiting = list(items)
    if not waiting:
        return
    with narrator.progress(title) as progress, ThreadPoolExecutor(AT_ONCE) as pool:
        moved = 0
        futures = [pool.submit(move, item) for item in waiting]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                moved += future.result()
                progress(done, len(waiting), note=f"{moved / 1e6:,.1f} MB")
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
