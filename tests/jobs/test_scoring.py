"""Scores of a run reach the card that people read."""

from pathlib import Path

from retro.jobs.scoring import evaluate_split
from retro.stages.stage import open_artifact
from tests.scoring.runs import workspace_with_run
from tests.workspaces import small_run


def test_an_evaluation_is_told_on_the_card(tmp_path: Path, text_folder: Path, static_encoder: str) -> None:
    work = workspace_with_run(tmp_path / "work", text_folder, static_encoder)
    card = work.run_path("retro") / "README.md"
    assert "## Scores" not in card.read_text()
    found = evaluate_split(work.run("retro"), "test", small_run(static_encoder).evaluation)
    assert f"| test, retrieval on-2 | {found.bits_per_byte('on-2'):.4f} (" in card.read_text()
    # The card has no checksum: the run is still what was trained.
    open_artifact(work.run_path("retro"), "run", "retro train").check()
