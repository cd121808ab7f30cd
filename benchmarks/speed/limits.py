"""What the machine can do at most: matrix products of a precision, reading of memory, reading of files."""

from collections.abc import Callable
from pathlib import Path

import torch

SIDE = 2048
"""Of the square matrices whose product is the peak."""
PRODUCT = 2.0 * SIDE**3
"""FLOPs of that product."""
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def product(dtype: torch.dtype) -> Callable[[], object]:
    """One large product in this precision."""
    left, right = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(2))
    return lambda: left @ right


def product_name(dtype: torch.dtype) -> str:
    return f"{NAMES[dtype]} product of {SIDE:,}²"


def reading(num_bytes: float) -> Callable[[], object]:
    """Reads so many bytes of memory once, from the caches if they fit there."""
    numbers = torch.ones(max(1, int(num_bytes) // 4))
    return lambda: numbers.sum()


def reading_files(files: list[Path]) -> Callable[[], object]:
    """Reads whole files, which the system holds in memory after the first time."""

    def read() -> None:
        for path in files:
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 24):
                    pass

    return read


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes of all weights, each counted once."""
    return sum({id(p): p.numel() * p.element_size() for p in model.parameters()}.values())
