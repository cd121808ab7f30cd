"""A disk that fills up.

The limit on the size of a file that a process may write stands for it: it needs no privileges, and what is
refused goes through the same calls of the same libraries.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def disk_of(num_bytes: int) -> Iterator[None]:
    """No file may grow beyond this size, in this process and in those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
