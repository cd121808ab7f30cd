"""The plan of the text: what is said of it, and when the minutes are too few for it."""

from pathlib import Path

import pytest

from retro import recipes
from retro.errors import ArtifactError, ConfigError
from retro.planning.plan import Plan, Speeds, plan_text
from retro.planning.speed import KeyTimes, TokenTimes
from tests.planning.test_choices import FAST, SLOW, a_survey

QUICK = KeyTimes(embedding=1e-5, graph=1e-4, pair=1e-9)
THOROUGH = KeyTimes(embedding=0.02, graph=1e-4, pair=1e-9)


def planned(num_documents: int, num_bytes: int, minutes: float, times: TokenTimes = SLOW) -> Plan:
    speeds = Speeds(times, {"minilm": THOROUGH, "static": QUICK})
    return plan_text(["texts"], minutes, a_survey(num_documents, num_bytes), speeds)


def test_the_reasons_are_said_in_numbers() -> None:
    rows = dict(planned(500, 5_000_000, 30).choices)
    assert rows["text"] == "500 documents, 5.00 MB"
    assert rows["embedder"].startswith("static, 100,000 chunks a second: about 0 seconds for all; minilm")
    assert "about 7.7 minutes" in rows["embedder"]
    assert "sampled" not in rows


def test_of_a_text_too_large_for_the_minutes_a_part_is_used_and_that_is_said() -> None:
    plan = planned(100_000, 10**9, 5)
    assert 0 < plan.run.corpus.sample_fraction < 1
    assert dict(plan.choices)["sampled"].startswith(f"{plan.run.corpus.sample_fraction:.1%} of the documents")


def test_a_part_of_too_few_documents_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--minutes is 5, .* expected at least \d+ minutes, or shorter"):
        planned(20, 10**9, 5)


def test_too_few_minutes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--minutes is 0\.5, .* expected at least 2"):
        planned(500, 5_000_000, 0.5)
    planned(500, 5_000_000, 1, FAST)


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    plan = planned(500, 5_000_000, 30)
    assert Plan.read(tmp_path) is None
    plan.write(tmp_path)
    assert Plan.read(tmp_path) == plan
    assert recipes.of_workspace(tmp_path) == plan.run
    for file in (recipes.RECORD, recipes.FILE):
        plan.write(tmp_path)
        (tmp_path / file).write_text("{")
        with pytest.raises(ArtifactError, match="remove both and run the same command again"):
            Plan.read(tmp_path)
