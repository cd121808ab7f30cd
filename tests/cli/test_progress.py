"""Progress where nobody watches: plain lines now and then, and one for each step's end."""

import re
import threading
import time
from pathlib import Path

import pytest

from retro.cli.console import print_table
from retro.cli.main import main
from retro.cli.progress_lines import minutes, progress_lines
from tests.workspaces import small_workspace

ODD = re.compile(r"[\x1b─-╿▀-▟⠀-⣿✓]")
"""ANSI codes, boxes, blocks and spinners."""


def test_a_line_comes_in_silence_and_one_at_the_end() -> None:
    lines: list[str] = []
    with progress_lines("Learning", lines.append, seconds=0.02):
        time.sleep(0.15)
    assert len(lines) >= 3
    assert set(lines[:-1]) == {"Learning: 0:00 so far"}
    assert lines[-1] == "Learning: took 0:00"


def test_steps_tell_how_far_they_are_and_how_long_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lines: list[str] = []
    with progress_lines("Training retro", lines.append, seconds=1e6) as progress:
        now = 5.0
        progress(20, 500, note="loss 3.9")  # resumed at 19: the speed is that of the steps made here
        now = 15.0
        progress(120, 500, note="loss 3.2")
        progress(0, 0, "Writing")
        now = 16.0
        progress(3_000_000, 4_000_000, "Writing")
    assert lines == ["Training retro: 120 of 500, loss 3.2, took 0:15", "Writing: 75%, took 0:01"]


def test_what_is_left_follows_from_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lines: list[str] = []
    written = threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        written.set()

    with progress_lines("Training", write, seconds=0.01) as progress:
        progress(100, 500)
        now = 10.0
        progress(200, 500)
        written.clear()
        assert written.wait(5)
    assert "Training: 200 of 500, 0:30 left" in lines


def test_an_error_stops_the_lines_and_claims_no_end() -> None:
    lines: list[str] = []
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), progress_lines("Training", lines.append):
        raise KeyboardInterrupt
    assert threading.active_count() == before
    assert not lines


def test_times_are_as_a_clock_shows_them() -> None:
    assert [minutes(seconds) for seconds in (0.4, 59.6, 754, 3723)] == ["0:00", "1:00", "12:34", "1:02:03"]


def test_training_tells_both_losses_in_plain_lines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text_folder: Path, static_encoder: str
) -> None:
    work = small_workspace(tmp_path, text_folder, static_encoder, splits=("train", "valid"))
    shape = ["--model.chunk-len", "8", "--seq-len", "32", "--batch-size", "2"]
    steps = ["--num-steps", "4", "--warmup-steps", "1", "--validate-every", "2"]
    for name, valid in (("retro", r"valid \d\.\d+ on, \d\.\d+ off"), ("baseline", r"valid \d\.\d+")):
        baseline = ["--baseline"] if name == "baseline" else []
        assert main(["train", str(work.path), *shape, *steps, *baseline]) == 0
        shown = capsys.readouterr().out
        expected = rf"Training {name}: 4 of 4, loss \d\.\d+, {valid}, [\d,]+ tokens/s, took \d:\d\d"
        assert re.fullmatch(expected, shown.splitlines()[0]), shown
        assert not ODD.search(shown)


def test_tables_in_a_log_are_whole_and_have_no_frame(capsys: pytest.CaptureFixture[str]) -> None:
    long = "a long name " * 20
    print_table("a table", ["name", "number"], [[long, "12"], ["b", "3"]])
    shown = capsys.readouterr().out
    assert not ODD.search(shown)
    assert any(line.split() == [*long.split(), "12"] for line in shown.splitlines())
