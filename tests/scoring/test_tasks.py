import json
from pathlib import Path

import numpy as np
import pytest

from retro.cli.main import main
from retro.errors import ConfigError, DataError
from retro.jobs.scoring import evaluate_task
from retro.retrieval.retriever import Retriever
from retro.scoring.sets import name_of
from retro.scoring.targets import TargetScores
from retro.scoring.tasks import evaluate_task as score_task
from retro.scoring.tasks import last_word_metrics, last_words, source_of, summary_pairs
from retro.workspace import Workspace
from tests.scoring.runs import workspace_with_run
from tests.workspaces import small_run


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Workspace:
    return workspace_with_run(tmp_path_factory.mktemp("tasks") / "work", text_folder, static_encoder)


def jsonl(file: Path, *records: dict[str, str]) -> str:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(file)


def test_last_words(tmp_path: Path) -> None:
    source = jsonl(
        tmp_path / "passages.jsonl",
        {"text": "They do not care about signs"},
        {"text": "So said, at last, Jean-Luc\n"},
    )
    assert list(last_words(source)) == [
        ("They do not care about", " signs"),
        ("So said, at last,", " Jean-Luc"),
    ]
    with pytest.raises(DataError, match="fewer than two words"):
        list(last_words(jsonl(tmp_path / "short.jsonl", {"text": "signs"})))


def test_a_word_counts_whole_or_not_at_all() -> None:
    scores = TargetScores(
        np.array([1.0, 3.0, 2.0, 2.0]),
        np.array([True, False, False, False]),
        np.array([1, 2, 1, 3]),
        np.full(4, 5),
    )
    metrics = last_word_metrics(scores)
    assert metrics["accuracy"].estimate == 0.25
    assert metrics["accuracy"].low < 0.25 < metrics["accuracy"].high
    assert metrics["perplexity of a word"].estimate == 4.0


def test_summaries(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "pairs.jsonl", {"article": "A long story.\n", "summary": "It ends well."})
    assert list(summary_pairs(source)) == [("A long story.\n\nTL;DR:", " It ends well.")]
    with pytest.raises(DataError, match="has no summary; expected the fields article and summary"):
        list(summary_pairs(jsonl(tmp_path / "bad.jsonl", {"article": "A long story."})))


def test_a_task_is_finished_once_and_reused(work: Workspace, tmp_path: Path, static_encoder: str) -> None:
    passages = [
        {"text": f"The licence permits anyone to use and share this software {word}"}
        for word in ("without", "and", "merit")
    ]
    source, config = jsonl(tmp_path / "passages.jsonl", *passages), small_run(static_encoder).evaluation
    result = evaluate_task(work.run("retro"), "lambada", config, source)
    assert list(result.modes) == ["off", "on-1", "on-2"]
    assert result.artifact.path == work.path / "evaluations" / "retro" / f"lambada-{name_of(source)}"
    assert result.seen.documents == 3
    assert result.seen.count == 0
    with np.load(result.artifact.file("scores.npz")) as arrays:
        assert 2 ** arrays["bits/on-2"].mean() == pytest.approx(
            result.modes["on-2"]["perplexity of a word"].estimate
        )
    again = evaluate_task(work.run("retro"), "lambada", config, source)
    assert (again.modes, again.seen) == (result.modes, result.seen)
    # Other training text is not what the run was trained on: the scores stay, with what was seen by then.
    opened = work.run("retro")
    later = score_task(
        "lambada",
        source,
        opened.model,
        opened.run.fingerprint,
        Retriever(opened.datastore()),
        work.store("train").select([0, 1]),
        result.artifact.path,
        config,
    )
    assert later.artifact.manifest == result.artifact.manifest


def test_the_command_scores_sets_and_tasks_and_warns(
    work: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = work.datastore().tokenizer.decode(work.store("train").document(0))
    shape = ["--window", "32", "--stride", "16", "--num-neighbours", "2"]
    articles = jsonl(
        tmp_path / "articles.jsonl", {"body": known}, {"body": "The merit of this warranty. " * 8}
    )
    assert main(["evaluate", str(work.path), "retro", "--on", articles, "--fields.text", "body", *shape]) == 0
    shown = capsys.readouterr().out
    assert (
        "warning: 1 of 2 documents are in the training text or the datastore (1 exactly, 0 nearly)" in shown
    )
    assert "on-2" in shown
    pairs = jsonl(
        tmp_path / "pairs.jsonl", {"article": "Use and share this software.", "summary": "Share it."}
    )
    assert main(["evaluate", str(work.path), "retro", "--task", "summaries", "--on", pairs, *shape]) == 0
    shown = capsys.readouterr().out
    assert "perplexity of a token" in shown
    assert "warning" not in shown


def test_unknown_tasks_and_missing_data_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected one of lambada, summaries"):
        source_of("chess")
    with pytest.raises(ConfigError, match="name it with --on"):
        source_of("summaries")
    assert source_of("lambada") == "lambada"
