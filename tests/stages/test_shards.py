"""An array in several files reads as the one file does, and is written in bounded pieces."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retro.errors import ArtifactError, ConfigError
from retro.stages.files import file_checksum
from retro.stages.shards import (
    ShardedArray,
    append_shards,
    file_names,
    files_of,
    load_shards,
    rows_per_file,
    whole_checksum,
)
from retro.stages.stage import Artifact, Stage, run_stage

WHOLE = np.arange(3 * 11).reshape(11, 3)


def cut(array: np.ndarray, length: int) -> ShardedArray:
    return ShardedArray([array[start : start + length] for start in range(0, len(array), length)])


numbers = st.integers(-11, 10)
keys = st.one_of(
    numbers,
    st.builds(slice, st.none() | st.integers(-13, 13), st.none() | st.integers(-13, 13)),
    st.builds(slice, numbers, numbers, st.sampled_from([2, -1, -3])),
    st.lists(numbers, max_size=7).map(lambda rows: np.array(rows, dtype=np.int64)),
    st.lists(numbers, min_size=4, max_size=4).map(lambda rows: np.array(rows).reshape(2, 2)),
    st.lists(st.booleans(), min_size=11, max_size=11).map(np.array),
)


@settings(deadline=None)
@given(st.integers(1, 12), keys)
def test_it_is_read_as_numpy_reads_the_whole(length: int, key: object) -> None:
    for array in (WHOLE, WHOLE[:, 0]):
        found = cut(array, length)[key]
        np.testing.assert_array_equal(found, array[key])
        assert np.shape(found) == array[key].shape
    np.testing.assert_array_equal(cut(WHOLE, length)[key, :2], WHOLE[key, :2])
    np.testing.assert_array_equal(np.asarray(cut(WHOLE, length)), WHOLE)
    assert cut(WHOLE, length).shape == WHOLE.shape


@pytest.mark.parametrize("row", [11, -12, [3, 11]])
def test_a_row_that_is_not_there_is_an_error(row: object) -> None:
    with pytest.raises(IndexError):
        cut(WHOLE, 4)[row]


def test_a_stretch_within_one_file_is_not_copied() -> None:
    assert np.shares_memory(cut(WHOLE, 4)[5:8], WHOLE)


def write(folder: Path, pieces: list[np.ndarray], file_bytes: int) -> Artifact:
    def work(stage: Stage) -> None:
        append_shards(stage, "a", np.dtype(np.uint16), pieces, file_bytes)

    return run_stage(folder, "arrays", {}, {}, work, "make it")


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any), st.integers(1, 40))
def test_what_is_appended_is_the_same_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], file_bytes: int
) -> None:
    tmp_path = tmp_path_factory.mktemp("shards")
    values = np.arange(sum(lengths), dtype=np.uint16)
    pieces = np.split(values, np.cumsum(lengths)[:-1])
    one, many = write(tmp_path / "one", pieces, 1 << 30), write(tmp_path / "many", pieces, file_bytes)
    assert [file.name for file in files_of(one, "a")] == ["a.npy"]
    np.testing.assert_array_equal(np.load(one.file("a.npy")), values)
    parts = [np.load(file) for file in files_of(many, "a")]
    np.testing.assert_array_equal(np.concatenate(parts), values)
    assert max(part.nbytes for part in parts) <= max(2, file_bytes)
    assert [file.name for file in files_of(many, "a")] == file_names(
        "a", len(values), rows_per_file(file_bytes, 2)
    )
    assert len(list(many.path.iterdir())) == len(parts) + 1  # and the manifest
    found = load_shards(files_of(many, "a"), "make it again")
    assert whole_checksum(found) == file_checksum(one.file("a.npy"))


def test_one_file_is_what_numpy_writes(tmp_path: Path) -> None:
    values = np.arange(9, dtype=np.uint16)
    file = write(tmp_path / "one", [values], 100).file("a.npy")
    with (tmp_path / "expected").open("wb") as expected:
        np.lib.format.write_array(expected, values, version=(2, 0))
    assert file.read_bytes() == (tmp_path / "expected").read_bytes()
    assert whole_checksum(values) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_what_an_interrupted_run_left_is_not_read(tmp_path: Path) -> None:
    """The next run may cut otherwise, into fewer files than are there."""
    partial = tmp_path / "a.partial"

    def stop() -> np.ndarray:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a", (np.arange(9, dtype=np.uint16) if i < 3 else stop() for i in range(9)), 10)  # type: ignore[arg-type]
    assert len(list(partial.glob("a-*.npy"))) > 3
    assert not list(partial.glob("*.tmp"))
    values = np.arange(12, dtype=np.uint16)
    again = write(tmp_path / "a", [values], 20)
    assert sorted(again.manifest["files"]) == ["a-00000.npy", "a-00001.npy"]
    np.testing.assert_array_equal(load_shards(files_of(again, "a"), ""), values)


def test_files_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    artifact = write(tmp_path / "a", [np.arange(12, dtype=np.uint16)], 8)
    files = files_of(artifact, "a")
    for wrong in (np.arange(3, dtype=np.uint16), np.arange(4.0), np.zeros((4, 2), np.uint16), np.uint16(1)):
        np.save(files[1], wrong)
        with pytest.raises(
            ArtifactError, match=r"a-00001.npy holds .*expected uint16 of shape \(4,\).*again"
        ):
            load_shards(files, "make it again")
    files[1].unlink()
    with pytest.raises(ArtifactError, match=r"a-00001.npy is damaged"):
        load_shards(files, "make it again")


def test_a_file_holds_a_row_at_least() -> None:
    assert rows_per_file(10, 80) == 1
    with pytest.raises(ConfigError, match="file_bytes is 0"):
        rows_per_file(0, 2)
