"""The table of speeds: ratios round by round, parts that are kept, and each part's rows."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a benchmark is run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def part(name: str) -> ModuleType:
    return importlib.import_module(f"speed.{name}")


def rounds_of(seconds: dict[str, list[float]]) -> object:
    rows = part("rows")
    rounds = rows.Rounds({}, rounds=0, warmup=0)
    rounds.seconds = seconds
    return rounds


def test_ratios_are_taken_round_by_round() -> None:
    """A slow round strikes ours and the rival alike, and leaves the ratio as it is."""
    rounds = rounds_of({"ours": [1.0, 2.0, 10.0], "rival": [2.0, 4.0, 20.0], "product": [0.5, 1.0, 5.0]})
    row = rounds.row(
        "ours", 100, what="x", size="s", unit="chunks/s", rival="rival", limit="product", work=1.5
    )
    assert (row.ours.low, row.ours.median, row.ours.high) == (10.0, 50.0, 100.0)
    assert row.theirs.median == 25.0
    assert (row.times.low, row.times.median, row.times.high) == (2.0, 2.0, 2.0)
    # One and a half of the limit's products are needed, and three have the time.
    assert row.share.median == pytest.approx(0.75)


def test_a_rival_that_does_less_in_a_call_is_counted_for_less() -> None:
    rounds = rounds_of({"ours": [1.0], "rival": [1.0]})
    row = rounds.row("ours", 8, what="x", size="s", unit="tokens/s", rival="rival", rival_amount=2)
    assert row.theirs.median == 2.0
    assert row.times.median == 4.0


def test_seconds_are_better_when_there_are_fewer() -> None:
    row = rounds_of({"ours": [2.0], "rival": [1.0]}).seconds_row("ours", what="x", size="s", rival="rival")
    assert row.ours.median == 2.0
    assert row.times.median == 0.5
    assert row.share is None


def test_a_row_comes_back_from_json_and_stands_in_table_and_page() -> None:
    from retro.pages.shell import Made

    rows = part("rows")
    row = rounds_of({"ours": [1.0, 2.0], "rival": [3.0, 3.0]}).row(
        "ours", 1200, what="keys <b>", size="two", unit="chunks/s", rival="rival"
    )
    assert rows.Row.read(json.loads(json.dumps(row.record()))) == row
    line = "| keys <b> | two | 900 (600 – 1,200) | chunks/s | rival | 400 | 2.25 (1.50 – 3.00) |  |  |"
    assert rows.markdown([row]).splitlines()[-1] == line
    page = part("page").table_page({"keys": [row]}, {"memory": "it failed"}, Made("make bench", "text"))
    for text in ("keys &lt;b&gt;", "2.25 (1.50 – 3.00)", "it failed", "make bench"):
        assert text in page


def test_a_part_that_was_measured_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = importlib.import_module("run")
    assert run.run(["installation"], tmp_path, again=False, quick=True) == {}
    record = json.loads((tmp_path / "installation.json").read_text())
    assert record["rows"][0]["unit"] == "MB"
    assert record["rows"][0]["ours"]["median"] > 100
    record["seconds"] = -1.0
    (tmp_path / "installation.json").write_text(json.dumps(record))
    assert run.run(["installation"], tmp_path, again=False, quick=True) == {}
    assert run.records(tmp_path)["installation"]["seconds"] == -1.0
    assert "was measured before" in capfd.readouterr().out
    assert run.run(["installation"], tmp_path, again=True, quick=True) == {}
    assert run.records(tmp_path)["installation"]["seconds"] > 0


def test_a_part_that_fails_is_told(tmp_path: Path) -> None:
    (tmp_path / "installation.json").mkdir()  # cannot be replaced by a file
    run = importlib.import_module("run")
    failed = run.run(["installation"], tmp_path, again=True, quick=True)
    assert failed == {"installation": "this part ended with exit code 1"}


def test_every_part_can_be_measured() -> None:
    run = importlib.import_module("run")
    for name in run.PARTS:
        assert callable(part(name).measure)
        assert (BENCHMARKS / "speed" / f"{name}.py").exists()


def test_commands_are_timed_beside_python_itself() -> None:
    rows = list(part("starting")._commands(rounds=1))
    assert [row.what for row in rows] == ["import retro", "retro --help", "retro train --help"]
    for row in rows:
        assert 0 < row.share.median <= 1.5
        assert row.times.median > 0


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("name", ["training", "neighbours", "scoring", "sampling", "keys", "starting"])
def test_each_part_gives_rows(tmp_path: Path, name: str) -> None:
    """In a process of its own, as some change how memory is kept."""
    run = importlib.import_module("run")
    assert run.run([name], tmp_path, again=False, quick=True) == {}
    for record in run.records(tmp_path)[name]["rows"]:
        row = part("rows").Row.read(record)
        assert row.ours.median > 0
        assert row.what
        assert row.unit
        assert (row.rival == "") == (row.times is None)
        assert (row.limit == "") == (row.share is None)


def test_the_limits_are_what_they_say() -> None:
    import torch

    limits = part("limits")
    assert limits.product(torch.float32)().shape == (limits.SIDE, limits.SIDE)
    assert limits.reading(4000)() == 1000.0  # ones, four bytes each
    shared = torch.nn.Linear(10, 10, bias=False)
    tied = torch.nn.Sequential(shared, shared)
    assert limits.weight_bytes(tied) == 400


def test_what_a_package_needs_is_found() -> None:
    installation = part("installation")
    found = installation.closure({"torch"}, {})
    assert "torch" in found
    assert "retro-lm" not in found
    assert "numpy" in installation.closure({"retro-lm"}, {})
