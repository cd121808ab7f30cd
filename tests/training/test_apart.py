"""A model that process 0 alone builds, sends in shards and gathers again is the model that all had built."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from retro.model.safetensors_file import TYPES, write_safetensors
from retro.model.weights import load_tensors
from tests.training.runs import losses, send_there_and_back, several_processes, start, start_apart, start_fit


@pytest.mark.slow
@pytest.mark.parametrize("fits", [False, True])
def test_processes_without_the_model_train_as_with_it(tmp_path: Path, fits: bool) -> None:
    (start_fit if fits else start)(tmp_path / "one")
    several_processes(tmp_path / "apart", start_apart, fits=fits)
    several_processes(tmp_path / "whole", start_fit if fits else start)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("apart", "whole")]
    assert weights[0] == weights[1]
    assert losses(tmp_path / "apart") == losses(tmp_path / "whole")
    assert [row[2] for row in losses(tmp_path / "apart")] == pytest.approx(
        [row[2] for row in losses(tmp_path / "one")], abs=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3])
def test_what_is_sent_in_shards_comes_back_whole(tmp_path: Path, number: int) -> None:
    """Also rows that cannot be divided evenly, fewer rows than processes, and what is not sharded."""
    several_processes(tmp_path, send_there_and_back, number=number)
    before, after = load_tensors(tmp_path / "before"), load_tensors(tmp_path / "after")
    assert before.keys() == after.keys()
    assert len(before) == 11
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_file_is_the_one_that_the_library_writes(tmp_path: Path) -> None:
    tensors: dict[str, Tensor] = {}
    for dtype in TYPES:
        for shape in ((), (0, 3), (2, 5), (4,)):
            tensors[f"é {shape} {dtype}"] = (torch.randn(shape) * 9).to(dtype)
    tensors["turned"] = torch.arange(12.0).reshape(3, 4).T
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "theirs")
    asked: list[str] = []

    def whole(tensor: Tensor) -> Tensor:
        asked.extend(name for name, other in tensors.items() if other is tensor)
        return tensor

    write_safetensors(tensors, tmp_path / "ours", whole)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert sorted(asked) == sorted(tensors)

    def failing(tensor: Tensor) -> Tensor:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        write_safetensors(tensors, tmp_path / "third", failing)
    assert {path.name for path in tmp_path.iterdir()} == {"ours", "theirs"}
