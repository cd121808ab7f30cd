"""Writing safetensors a tensor at a time: a model that is spread over machines need not lie in one memory.

The file is the one that the safetensors library writes: a length, a JSON header with every tensor's place,
and the tensors, those of the widest types first.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from retro.stages.files import atomic_write

ALIGNMENT = 8
TYPES = {
    # From the narrowest to the widest, which is the order of the format.
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}


def file_order(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names in the order of their tensors in the file."""
    ranks = {dtype: rank for rank, dtype in enumerate(TYPES)}
    return sorted(tensors, key=lambda name: (-ranks[tensors[name].dtype], name))


def write_safetensors(
    tensors: Mapping[str, Tensor], path: Path, whole: Callable[[Tensor], Tensor] = Tensor.detach
) -> None:
    """Write tensors to a file that is whole or not there; `whole` is asked for each when its turn comes."""
    header: dict[str, object] = {}
    end = 0
    for name in file_order(tensors):
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with atomic_write(path) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in header:
            data = whole(tensors[name]).detach().cpu().contiguous()
            # As bytes, since NumPy knows no bfloat16.
            file.write(data.reshape(-1).view(torch.uint8).numpy().data)
