"""What this machine offers: a GPU if there is one, bfloat16 where the hardware has it, and memory that
stays in the process."""

import ctypes
import sys

import torch

from retro.errors import ConfigError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


def best_device() -> torch.device:
    """Where a model that is opened to be used goes: the GPU, if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device computes bfloat16 products in hardware; where it only emulates them they are far
    slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and any(
        torch.cpu.get_capabilities().get(name, False) for name in ("avx512_bf16", "amx_bf16")
    )


def product_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The type for a `precision` of the config; weights, sums and the optimiser stay in float32."""
    if precision == "bfloat16" and not has_bfloat16(device):
        raise ConfigError(
            f"precision is bfloat16, which this {device.type} only emulates; "
            "expected a GPU with bfloat16 or a CPU with avx512_bf16 or AMX; use float32"
        )
    return torch.bfloat16 if precision != "float32" and has_bfloat16(device) else torch.float32


def products_in(dtype: torch.dtype, device: torch.device) -> torch.autocast:
    """A block in which matrix products are computed in this type; weights and sums stay in float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def keep_freed_memory() -> bool:
    """Tell glibc to serve large blocks from its heap and not to return them; false where there is no glibc.

    By default every large tensor is a fresh mapping whose pages the kernel zeroes;
    `benchmarks/training_step.py` shows the price.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1))
