"""Keep freed memory in the process, so that a training step does not pay for its pages again and again."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


def keep_freed_memory() -> bool:
    """Tell glibc to serve large blocks from its heap and not to return them; false where there is no glibc.

    By default every large tensor is a fresh mapping whose pages the kernel zeroes; `benchmarks/training_step.py` shows the price.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1))
