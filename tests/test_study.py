"""Times of a study's parts, which outlive the process that took them."""

from pathlib import Path

from retro.study import Clock


def test_two_processes_of_one_study_keep_each_others_times(tmp_path: Path) -> None:
    path = tmp_path / "seconds.json"
    one, other = Clock(path), Clock(path)
    one.add("train retro", 480.0)
    other.add("train baseline", 240.0)
    one.add("train retro", 1.5)
    assert Clock(path).seconds == {"train retro": 481.5, "train baseline": 240.0}


def test_a_part_that_was_finished_takes_no_more_time(tmp_path: Path) -> None:
    clock, finished = Clock(tmp_path / "seconds.json"), tmp_path / "run"
    clock.add("train", 3.0)
    finished.mkdir()
    with clock.part("train", finished):
        pass
    assert clock.seconds == {"train": 3.0}
