"""What an unfinished stage has done so far is kept, and made once only."""

import pickle
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retro.errors import ArtifactError
from retro.stages.executor import LocalExecutor
from retro.stages.parts import ARRAY, ARRAYS, JSON, ROWS, Format, Parts
from retro.stages.stage import Stage, run_stage


def square(number: int) -> int:
    return number * number


@pytest.mark.parametrize(
    ("format", "value"),
    [
        (JSON, {"counts": {"é": 3}, "problems": [["here", "why"]]}),
        (ROWS, [{"id": "a\nb"}, {"id": "é\u2028"}]),
        (ARRAY, np.arange(6, dtype=np.float16).reshape(2, 3)),
        (ARRAYS, {"keys": np.eye(2, dtype=np.float32), "chunks": np.arange(2)}),
    ],
)
def test_a_part_is_made_once_and_read_as_it_was_written(
    tmp_path: Path, format: Format[Any], value: Any
) -> None:
    parts: Parts[Any] = Parts(tmp_path / "deep" / "er", format)
    assert not parts.has("000001")
    first = parts.keep("000001", lambda: value)
    again = parts.keep("000001", lambda: pytest.fail("made twice"))
    assert first is value
    np.testing.assert_equal(again, value)
    assert getattr(again, "dtype", None) == getattr(value, "dtype", None)
    assert pickle.loads(pickle.dumps(parts)).has("000001")  # noqa: S301  another process gets it so
    assert [file.name for file in parts.folder.iterdir()] == [f"000001{format.suffix}"]


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("finished", [(), (0, 1, 4), (2,), (4,), (0, 1, 2, 3, 4)])
def test_only_missing_parts_are_made_and_all_come_in_order(
    tmp_path: Path, finished: tuple[int, ...], num_workers: int
) -> None:
    parts: Parts[int] = Parts(tmp_path, JSON)
    for number in finished:
        parts.write(str(number), number * number)
    asked: list[int] = []

    def run(items: Iterable[int]) -> Iterator[int]:
        def noted() -> Iterator[int]:
            for item in items:
                asked.append(item)
                yield item

        return LocalExecutor(num_workers).map(square, noted())

    assert list(parts.map(run, ((str(number), number) for number in range(5)))) == [0, 1, 4, 9, 16]
    assert asked == [number for number in range(5) if number not in finished]
    assert all(parts.has(str(number)) for number in range(5))


def test_an_interrupted_stage_goes_on_and_its_scratch_is_gone_in_the_end(tmp_path: Path) -> None:
    made: list[int] = []

    def make(number: int) -> np.ndarray:
        if number == 2 and len(made) == 2:
            raise KeyboardInterrupt
        made.append(number)
        return np.array([number])

    def work(stage: Stage) -> None:
        parts = Parts(stage.scratch("numbers"), ARRAY)
        numbers = [parts.keep(str(number), partial(make, number)) for number in range(3)]
        with stage.write("sum.npy") as file:
            np.save(file, sum(numbers))

    with pytest.raises(KeyboardInterrupt):
        run_stage(tmp_path / "out", "sums", {}, {}, work, "make sums")
    made.append(-1)
    artifact = run_stage(tmp_path / "out", "sums", {}, {}, work, "make sums")
    assert made == [0, 1, -1, 2]
    assert np.load(artifact.file("sum.npy")).tolist() == [3]
    assert {file.name for file in artifact.path.iterdir()} == {"sum.npy", "manifest.json"}


@pytest.mark.parametrize("format", [JSON, ROWS, ARRAY, ARRAYS])
def test_a_part_that_something_else_destroyed_is_named(tmp_path: Path, format: Format[Any]) -> None:
    parts: Parts[Any] = Parts(tmp_path, format)
    parts.file("1").write_bytes(b"PK\x03\x04half")
    with pytest.raises(ArtifactError, match=r"1\.\w+ is not readable .*remove it and run the same command"):
        parts.keep("1", lambda: pytest.fail("made"))
