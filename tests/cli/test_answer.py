"""`retro fit --task qa` and `retro answer` as a user meets them."""

import json
from pathlib import Path

import pytest

from retro.cli.main import main
from retro.jobs.training import train_run
from retro.recipes import baseline_of
from tests.workspaces import small_run, small_workspace

FIT = [
    "--num-steps",
    "3",
    "--warmup-steps",
    "1",
    "--batch-size",
    "4",
    "--num-neighbours",
    "3",
    "--precision",
    "float32",
]
ROWS = [
    {
        "question": f"what is {n}?",
        "answers": [f"number {n}"],
        "ctxs": [{"title": f"T{n}", "text": f"It is number {n}.", "score": 1}],
    }
    for n in range(24)
]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> str:
    """A workspace with a RETRO, a baseline, and the RETRO tuned by the command."""
    run, folder = small_run(static_encoder), tmp_path_factory.mktemp("answer")
    workspace = small_workspace(folder, text_folder, static_encoder, splits=("train", "valid"))
    for config in (run, baseline_of(run)):
        train_run(workspace, config.name, config.model, config.training)
    write(folder / "questions.jsonl", ROWS)
    fit = ["fit", str(folder), "--task", "qa", "--questions", str(folder / "questions.jsonl"), "--from"]
    assert main([*fit, "small", *FIT]) == 0
    assert main([*fit, "small-baseline", *FIT, "--name", "closed", "--closed-book"]) == 0
    return str(folder)


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answers(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict]:
    capsys.readouterr()
    assert main(["answer", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_run_remembers_its_passages_and_every_source_brings_as_many(
    capsys: pytest.CaptureFixture[str], work: str, tmp_path: Path
) -> None:
    passages = write(tmp_path / "p.jsonl", [{"title": f"P{n}", "text": f"text {n}"} for n in range(5)])
    for options, count in (
        ([], 3),
        (["--bm25"], 3),
        (["--hybrid"], 3),
        (["--passages", str(passages)], 3),
        (["--passages", str(passages), "--k", "9"], 5),
        (["--closed-book"], 0),
    ):
        [record] = answers(capsys, work, "questions", "who permits anyone to share this software?", *options)
        assert len(record["passages"]) == count
        assert record["log_prob"] < 0
    assert record["answers"] == []


def test_one_question_shows_its_passages(capsys: pytest.CaptureFixture[str], work: str) -> None:
    assert main(["answer", work, "questions", "who may use it?"]) == 0
    shown = capsys.readouterr().out
    assert "log-probability" in shown
    assert "score" in shown
    assert main(["answer", work, "closed", "who may use it?"]) == 0
    assert "no passages were read" in capsys.readouterr().out


def test_a_file_is_answered_scored_and_written(
    capsys: pytest.CaptureFixture[str], work: str, tmp_path: Path
) -> None:
    questions = write(tmp_path / "q.jsonl", [*ROWS[:5], {"question": "unanswered?"}, {"answers": ["x"]}])
    out = tmp_path / "answers.jsonl"
    assert main(["answer", work, "questions", "--questions", str(questions), "--out", str(out)]) == 0
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    for words in (
        "1 left out: without a question",
        "1 without an answer",
        "6 answers",
        "exact match",
        "a passage holds the answer",
    ):
        assert words in shown
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["question"] for record in records] == [row["question"] for row in ROWS[:5]] + [
        "unanswered?"
    ]
    assert records[0]["passages"][0]["title"] == "T0"
    assert {"exact_match", "f1"} <= records[0].keys()
    assert "exact_match" not in records[5]
    [record, *_] = answers(capsys, work, "questions", "--questions", str(questions), "--search", "--k", "2")
    assert len(record["passages"]) == 2
    assert main(["answer", work, "questions", "--questions", str(questions), "--compare"]) == 0
    shown = capsys.readouterr().out
    assert all(way in shown for way in ("closed book", "open book", "shuffled passages", "5 questions"))


def test_an_answer_that_no_passage_holds_is_told(
    capsys: pytest.CaptureFixture[str], work: str, tmp_path: Path
) -> None:
    """Of these words the run knows none."""
    [record] = answers(capsys, work, "questions", "what is 3?", "--max-tokens", "4", "--closed-book")
    assert record["in_no_passage"]
    told = "no passage that was read holds this answer"
    passages = write(tmp_path / "p.jsonl", [{"text": "Some other words."}])
    asked = ["answer", work, "questions", "what is 3?", "--max-tokens", "4", "--passages", str(passages)]
    assert main(asked) == 0
    assert told in capsys.readouterr().out
    [record] = answers(capsys, *asked[1:])
    assert record["in_no_passage"]
    file = write(tmp_path / "q.jsonl", [{"question": "what is 3?", "ctxs": [{"text": "Some other words."}]}])
    assert main(["answer", work, "questions", "--questions", str(file), "--max-tokens", "4"]) == 0
    assert "in no passage that was read: 1 of 1 answer" in capsys.readouterr().out


def test_an_answer_that_is_too_improbable_is_withheld(
    capsys: pytest.CaptureFixture[str], work: str, tmp_path: Path
) -> None:
    [sure] = answers(capsys, work, "questions", "what is 3?", "--max-tokens", "4")
    assert sure["answer"]
    for least, answer in ((sure["log_prob"] - 0.1, sure["answer"]), (sure["log_prob"] + 0.1, "")):
        options = ["--max-tokens", "4", "--least-log-prob", str(least)]
        [record] = answers(capsys, work, "questions", "what is 3?", *options)
        assert record == sure | {"answer": answer, "in_no_passage": True} | {"passages": record["passages"]}
    assert main(["answer", work, "questions", "what is 3?", *options]) == 0
    assert "no passage that was read holds an answer, as far as the model" in capsys.readouterr().out
    file = write(tmp_path / "q.jsonl", ROWS[:3])
    assert main(["answer", work, "questions", "--questions", str(file), "--least-log-prob", "-0.0001"]) == 0
    shown = capsys.readouterr().out
    assert "answered with nothing, as no passage holds an answer: 3 questions of 3" in shown
    assert "in no passage that was read" not in shown
    assert main(["answer", work, "questions", "?", "--least-log-prob", "1"]) == 1
    assert "least_log_prob is 1.0; expected" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_told_before_the_answers(
    capsys: pytest.CaptureFixture[str], work: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    asked = ["answer", work, "questions", "--questions", str(write(tmp_path / "q.jsonl", ROWS[:2]))]
    for out, message in ((tmp_path, "which is a folder"), (tmp_path / "file" / "a.jsonl", "is no folder")):
        assert main([*asked, "--out", str(out)]) == 1
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert main([*asked, "--out", str(tmp_path / "new" / "a.jsonl")]) == 0
    assert len((tmp_path / "new" / "a.jsonl").read_text().splitlines()) == 2


def test_plain_fitting_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--help"]) == 0
    assert "--fit.encoder.d-model" in capsys.readouterr().out
    assert main(["fit", "--task", "qa", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--questions" in shown
    assert "--from" in shown
    assert "--frozen" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "exactly one"),
        (["x", "--questions", "y"], "exactly one"),
        (["x", "--bm25", "--closed-book"], "exclude each other"),
        (["x", "--hybrid", "--search"], "exclude each other"),
        (["x", "--compare"], "--compare needs questions"),
        (["--questions", "y", "--compare", "--closed-book"], "against closed book"),
        (["x", "--out", "y"], "--out takes the answers of a file"),
        (["x", "--k", "-1"], "k is -1"),
        (["--questions", "nowhere.json"], "nowhere.json is no file"),
        (["x", "--passages", "nowhere.json"], "nowhere.json is no file"),
    ],
)
def test_bad_requests_get_one_clear_line(
    capsys: pytest.CaptureFixture[str], work: str, arguments: list[str], message: str
) -> None:
    capsys.readouterr()
    assert main(["answer", work, "questions", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("retro answer: ")
    assert error.count("\n") == 1


def test_a_baseline_given_passages_and_a_run_that_is_not_there(
    capsys: pytest.CaptureFixture[str], work: str
) -> None:
    assert main(["answer", work, "closed", "x", "--search"]) == 1
    assert "no cross-attention" in capsys.readouterr().err
    [record] = answers(capsys, work, "closed", "x", "--search", "--k", "2", "--reading", "prompt")
    assert len(record["passages"]) == 2
    assert main(["answer", work, "closed", "x", "--search", "--reading", "fused"]) == 1
    assert "expected a run that was fitted to one" in capsys.readouterr().err
    assert main(["answer", work, "absent", "x"]) == 1
    assert "absent" in capsys.readouterr().err
    assert main(["fit", work, "--task", "qa", "--questions", "nowhere", "--from", "small"]) == 1
    assert "nowhere is no file" in capsys.readouterr().err


def test_text_that_nothing_can_be_asked_of_is_told(capsys: pytest.CaptureFixture[str], work: str) -> None:
    """Without a file the questions are made of the training text; this one has neither names nor numbers."""
    assert main(["fit", work, "--task", "qa", "--from", "small", "--name", "cloze", *FIT]) == 1
    shown = capsys.readouterr()
    assert "0 questions made out of the training text" in shown.out
    assert "none of 0 questions has an answer" in shown.err


def test_a_run_that_was_never_taught_questions_says_so(capsys: pytest.CaptureFixture[str], work: str) -> None:
    capsys.readouterr()
    assert main(["answer", work, "small", "what is 3?", "--max-tokens", "2"]) == 0
    told = capsys.readouterr().err
    assert "small was never taught to answer questions" in told
    assert f"run: retro fit {work} --task qa --from {work}/runs/small" in told
    assert main(["answer", work, "questions", "what is 3?", "--max-tokens", "2"]) == 0
    assert not capsys.readouterr().err


def test_questions_are_learned_beside_what_the_datastore_has_for_them(
    capsys: pytest.CaptureFixture[str], work: str
) -> None:
    """Half of them beside nothing that holds the answer: those are answered with nothing."""
    fit = ["fit", work, "--task", "qa", "--questions", str(Path(work) / "questions.jsonl"), "--from", "small"]
    searched = [*fit, *FIT, "--name", "searched", "--search", "hybrid", "--num-questions", "20"]
    assert main([*searched, "--without-answer", "0.5", "--vary-neighbours"]) == 0
    captured = capsys.readouterr()
    assert "of 20 questions are shown no passage that holds the answer" in captured.out + captured.err
    [kept] = (Path(work) / "questions").glob("*-20/hybrid/manifest.json")
    assert json.loads(kept.read_text())["config"] == {"search": "hybrid", "k": 6}
    # Other draws are other questions, and so is another search.
    assert main(searched) == 1
    assert "questions" in capsys.readouterr().err
    assert main([*fit, *FIT, "--as-found"]) == 1
    assert "--search dense or bm25 or hybrid" in capsys.readouterr().err
