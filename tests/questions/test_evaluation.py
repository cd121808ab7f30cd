"""Questions answered in many ways: what each way reads, what is kept, and what the scores say."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from retro.cli.main import main
from retro.config import QuestionsConfig
from retro.corpus.documents import Document
from retro.errors import ArtifactError, ConfigError, DataError
from retro.model.retro import Retro
from retro.questions import searching
from retro.questions.answering import (
    Answerer,
    FromBm25,
    by_both_ranks,
    from_datastore,
    fuse_ranks,
    own_passages,
)
from retro.questions.evaluation import choose_examples, choose_sample, evaluate_questions, in_pieces
from retro.questions.examples import Question
from retro.questions.scoring import score, with_foreign_passages
from retro.questions.ways import CLOSED, HEADINGS, MARKS, Way, model_for, score_way, ways_of
from retro.retrieval.retriever import Passage
from retro.scoring.intervals import Interval
from retro.workspace import OpenRun, Workspace
from tests.bases import save_small_base
from tests.model.models import small_config

ROWS = [
    Question(
        f"what does licence {n} permit?",
        (f"use {n}", "anyone"),
        (Passage(f"Licence {n} permits use {n}. " + "It permits anyone to share this software. " * 4, "L"),),
    )
    for n in range(11)
]
SMALL = QuestionsConfig(num_passages=(1, 3), max_tokens=3, passage_len=64)


@pytest.fixture(scope="module")
def work(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], text_folder: Path, static_encoder: str
) -> Path:
    """A workspace with a fitted base, of which none can answer anything."""
    base = save_small_base(tmp_path_factory.mktemp("base"), texts, max_context=512)
    folder = tmp_path_factory.mktemp("asked") / "work"
    assert (
        main(["ingest", str(text_folder), "--base", str(base), "--out", str(folder), "--workers", "1"]) == 0
    )
    built = ["--embedder", static_encoder, "--chunk-len", "16", "--num-neighbours", "2", "--workers", "1"]
    assert main(["build", str(folder), *built]) == 0
    assert main(["neighbours", str(folder)]) == 0
    steps = ["--num-steps", "1", "--seq-len", "64", "--warmup-steps", "1", "--validate-batches", "1"]
    assert main(["fit", str(folder), "--base", str(base), *steps]) == 0
    return folder


@pytest.fixture
def opened(work: Path) -> OpenRun:
    return Workspace(work).run("fitted")


def answers_of(path: Path, way: str) -> list[dict]:
    lines = (path / "ways" / way / "answers.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_ways_are_passages_by_number_by_reading() -> None:
    config = QuestionsConfig(
        passages=("dense", "none", "gold"), num_passages=(1, 5), readings=("neighbours", "prompt")
    )
    assert ways_of(config) == [
        CLOSED,
        Way("dense", "neighbours", 1),
        Way("dense", "prompt", 1),
        Way("dense", "neighbours", 5),
        Way("dense", "prompt", 5),
        Way("gold", "neighbours"),
        Way("gold", "prompt"),
    ]
    assert [way.name for way in ways_of(config)[:3]] == ["none", "dense-1-neighbours", "dense-1-prompt"]


def test_every_way_answers_with_its_own_passages(opened: OpenRun, tmp_path: Path) -> None:
    """Against an answerer that is given the passages of the way by hand."""
    scores = {found.way: found for found in evaluate_questions(opened, ROWS, tmp_path, SMALL)}
    assert list(scores) == ways_of(SMALL)
    datastore = opened.datastore()
    answerer = Answerer(opened.model, opened.tokenizer, own_passages(), 3, 8)

    def pieces(rows: Sequence[Question]) -> list[list[Passage]]:
        return [in_pieces(answerer, row.passages) for row in rows]

    expected = {
        "gold-neighbours": pieces(ROWS),
        "shuffled-neighbours": pieces(with_foreign_passages(ROWS)),
        "dense-3-neighbours": from_datastore(datastore, 3)(ROWS),
        "bm25-1-neighbours": FromBm25(datastore, 1)(ROWS),
        "hybrid-3-neighbours": by_both_ranks(datastore, 3)(ROWS),
        "none": [[] for _ in ROWS],
    }
    for name, passages in expected.items():
        asked = [
            Question(row.text, row.answers, tuple(found)) for row, found in zip(ROWS, passages, strict=True)
        ]
        found = answerer.answer(asked)
        assert [row["answer"] for row in answers_of(tmp_path, name)] == [answer.text for answer in found]
        by_hand = score(found)
        [way] = [way for way in scores if way.name == name]
        assert scores[way].recall == by_hand.recall
        assert scores[way].f1 == by_hand.all.f1
        assert scores[way].num_questions == len(ROWS)
    assert scores[Way("gold", "neighbours")].recall.estimate == 1.0
    assert scores[CLOSED].unfounded.estimate == 1.0
    assert scores[CLOSED].gain is None
    assert len(json.loads((tmp_path / "results.json").read_text())) == len(scores)


def test_passages_in_the_prompt_and_fused_are_read_whole(opened: OpenRun, tmp_path: Path) -> None:
    config = QuestionsConfig(
        passages=("gold", "dense"), readings=("prompt", "fused"), num_passages=(1,), max_tokens=3
    )
    scores = evaluate_questions(opened, ROWS[:3], tmp_path, config)
    # One passage that is fused is one in the prompt, and 512 tokens hold each of these.
    for passages in ("gold", "dense-1"):
        prompted, fused = (answers_of(tmp_path, f"{passages}-{how}") for how in ("prompt", "fused"))
        assert [row["answer"] for row in prompted] == [row["answer"] for row in fused]
    assert all(found.gain is None for found in scores)


def test_examples_stand_before_every_question(
    opened: OpenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: dict[str, str] = {}
    real = Answerer.answer

    def watching(self: Answerer, questions: Sequence[Question], *rest: object) -> list:
        kind = type(self.model).__name__ if questions[0].passages else "closed"
        prompts[kind] = self.tokenizer.decode(
            [t for t in self.form.prompt("Q?") if t != self.form.tokenizer.pad_id]
        )
        return real(self, questions)

    monkeypatch.setattr(Answerer, "answer", watching)
    config = QuestionsConfig(
        passages=("none", "gold"), readings=("neighbours", "prompt"), num_examples=1, max_tokens=2
    )
    example = Question("who?", ("nobody", "none"), (Passage("Nobody is.", "A"), Passage("x")))
    others = [*ROWS[:2], Question("unanswered?"), example]
    evaluate_questions(opened, ROWS[:2], tmp_path, config, examples=others)
    written = "question: who? \n answer: nobody\nquestion: Q? \n answer:"
    assert prompts["closed"] == written
    assert prompts["FittedModel"] == prompts["Prepended"] == "title: A, source: Nobody is.\n" + written
    with pytest.raises(ArtifactError, match=r"examples.*differ"):
        evaluate_questions(opened, ROWS[:2], tmp_path, config, examples=[ROWS[5]])
    with pytest.raises(DataError, match=r"1 example with.*expected 2.*--examples"):
        choose_examples(others, ROWS[:2], 2)
    short, long = (Question("s?", ("a",), (Passage("x" * n),)) for n in (3, 5))
    assert choose_examples([long, short], ROWS, 1) == [short]
    assert choose_examples([], ROWS, 0) == []


def test_an_interruption_costs_a_block_and_ways_can_be_added(
    opened: OpenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "BLOCK", 4)
    config = QuestionsConfig(passages=("dense",), num_passages=(2,), max_tokens=2)
    whole = evaluate_questions(opened, ROWS, tmp_path / "whole", config)
    asked: list[int] = []
    real = Answerer.answer

    def counting(self: Answerer, questions: Sequence[Question], *rest: object) -> list:
        asked.append(len(questions))
        if sum(asked) > 8 and len(asked) == 3:
            raise KeyboardInterrupt
        return real(self, questions)

    monkeypatch.setattr(Answerer, "answer", counting)
    with pytest.raises(KeyboardInterrupt):
        evaluate_questions(opened, ROWS, tmp_path / "again", config)
    assert evaluate_questions(opened, ROWS, tmp_path / "again", config) == whole
    assert asked == [4, 4, 3, 3]
    # Fewer passages are the first of those that were found; more are searched for.
    fewer = QuestionsConfig(passages=("dense",), num_passages=(1,), max_tokens=2)
    evaluate_questions(opened, ROWS, tmp_path / "again", fewer)
    assert json.loads((tmp_path / "again/passages/dense/manifest.json").read_text())["config"]["k"] == 2
    more = QuestionsConfig(passages=("dense",), num_passages=(2, 4), max_tokens=2)
    assert evaluate_questions(opened, ROWS, tmp_path / "again", more)[0] == whole[0]
    assert sum(asked) == 14 + 11 + 11


def test_a_sample_is_part_of_a_larger_one() -> None:
    small, large = (choose_sample(ROWS, number) for number in (3, 7))
    assert set(small) < set(large) < set(ROWS)
    assert large == [row for row in ROWS if row in large]
    assert choose_sample(ROWS, 0) == ROWS


def test_what_was_found_stays_when_the_datastore_grows(opened: OpenRun, tmp_path: Path, work: Path) -> None:
    config = QuestionsConfig(passages=("bm25",), num_passages=(1,), max_tokens=2)
    before = evaluate_questions(opened, ROWS, tmp_path, config)
    opened.datastore().add([Document("new", "what does licence 3 permit? use 3\n", "more", "New paper")])
    assert evaluate_questions(Workspace(work).run("fitted"), ROWS, tmp_path, config) == before
    evaluate_questions(Workspace(work).run("fitted"), ROWS, tmp_path / "new", config)
    then, now = (folder / "passages/bm25/00000.jsonl" for folder in (tmp_path, tmp_path / "new"))
    assert "New paper" in now.read_text()
    assert "New paper" not in then.read_text()
    # More passages would be of another version than those that were read: the user decides.
    more = QuestionsConfig(passages=("bm25",), num_passages=(1, 2), max_tokens=2)
    with pytest.raises(ArtifactError, match=r"datastore differ.*--redo"):
        evaluate_questions(Workspace(work).run("fitted"), ROWS, tmp_path, more)
    opened.datastore().delete(ids=["new"])


def test_ranks_are_fused_as_defined() -> None:
    a, b, c, d = (Passage(letter, "t", 9.0) for letter in "abcd")
    fused = fuse_ranks([[a, b, c], [c, d, a]])
    assert [passage.text for passage in fused] == ["a", "c", "b", "d"]
    assert [passage.score for passage in fused] == pytest.approx(
        [1 / 61 + 1 / 63, 1 / 63 + 1 / 61, 1 / 62, 1 / 62]
    )
    assert fuse_ranks([[], []]) == []


def test_gains_are_paired_with_closed_book() -> None:
    marks = {name: np.array([1.0, 0.0, 1.0, 1.0]) for name in MARKS}
    closed = {**marks, "exact_match": np.array([0.0, 0.0, 1.0, 1.0])}
    found = score_way(Way("gold", "neighbours"), marks, closed)
    assert found.gain is not None
    assert found.gain.estimate == 0.25
    assert score_way(Way("gold", "neighbours"), marks, marks).gain == Interval(0.0, 0.0, 0.0)
    marks["silent"] = np.array([1.0, 0.0, 0.0, 0.0])
    assert score_way(Way("gold", "neighbours"), marks, None).silent.estimate == 0.25
    assert len(found.row()) == len(HEADINGS)
    assert found.row()[:4] == ["gold", "neighbours", "", "75.0 (25.0 – 100.0)"]


def test_the_command_prints_a_row_for_each_way(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"question": row.text, "answers": row.answers, "ctxs": [{"text": row.passages[0].text}]}
        for row in ROWS
    ]
    file = tmp_path / "q.json"
    file.write_text(json.dumps(rows))
    command = ["evaluate", str(work), "fitted", "--task", "questions", "--on", str(file)]
    command += ["--num-questions", "4", "--num-passages", "2", "--max-tokens", "2"]
    assert main([*command, "--readings", "neighbours", "fused"]) == 0
    shown = capsys.readouterr().out
    assert "4 questions" in shown
    for passages in ("none", "gold", "shuffled", "dense", "bm25", "hybrid"):
        assert passages in shown
    [results] = (work / "evaluations").glob("fitted/questions-q*-4/results.json")
    assert len(json.loads(results.read_text())) == 11
    assert main([*command, "--max-tokens", "3"]) == 1
    assert "max_tokens differ" in capsys.readouterr().err
    assert main([*command, "--max-tokens", "3", "--redo"]) == 0
    assert main([*command, "--passages", "all"]) == 1
    assert "passages is 'all'; expected none or gold" in capsys.readouterr().err


def test_what_cannot_be_evaluated_is_refused_at_once(opened: OpenRun, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no question has an answer"):
        evaluate_questions(opened, [Question("who?")], tmp_path, SMALL)
    for options, message in (
        ({"num_passages": ()}, "num_passages is empty"),
        ({"num_passages": (0,)}, "num_passages is 0"),
        ({"readings": ()}, "readings is empty; expected some of neighbours, prompt, fused"),
        ({"num_questions": -1}, "num_questions is -1"),
    ):
        with pytest.raises(ConfigError, match=message):
            QuestionsConfig(**options)


def test_a_baseline_reads_passages_in_its_prompt_only() -> None:
    baseline = Retro(small_config().baseline())
    with pytest.raises(ConfigError, match=r"baseline.*--readings prompt"):
        model_for("neighbours", baseline, 64)
    assert model_for("", baseline, 64) is baseline
    assert model_for("prompt", baseline, 64).facts.retrieves


def test_answers_in_bfloat16_are_answers_of_their_own(
    opened: OpenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[torch.dtype] = []
    real = Answerer.answer

    def watching(self: Answerer, questions: Sequence[Question], *rest: object) -> list:
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        used.append(product.dtype)
        return real(self, questions)

    monkeypatch.setattr(Answerer, "answer", watching)
    plain = QuestionsConfig(passages=("gold",), max_tokens=2)
    quick = replace(plain, precision="bfloat16")
    evaluate_questions(opened, ROWS, tmp_path / "plain", plain)
    evaluate_questions(opened, ROWS, tmp_path / "quick", quick)
    assert used == [torch.float32, torch.bfloat16]
    # What was answered in one precision is not taken for the other.
    with pytest.raises(ArtifactError, match="precision"):
        evaluate_questions(opened, ROWS, tmp_path / "plain", quick)
    with pytest.raises(ConfigError, match="precision"):
        replace(plain, precision="int8")
