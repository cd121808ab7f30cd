"""From a base and a folder of text to a fitted run, by the commands: every one that takes a run takes it."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers

import retro
from retro.cli.main import main
from tests.bases import save_small_base
from tests.scoring.runs import workspace_with_run

FIT = ["--num-steps", "4", "--seq-len", "64", "--validate-every", "2", "--warmup-steps", "1"]
KNN = ["--evaluation.window", "64", "--evaluation.stride", "32", "--num-neighbours", "8"]
SHAPE = ["--window", "64", "--stride", "32", "--num-neighbours", "1", "2"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    return save_small_base(tmp_path_factory.mktemp("base"), texts)


@pytest.fixture(scope="module")
def work(
    tmp_path_factory: pytest.TempPathFactory, base: Path, text_folder: Path, static_encoder: str
) -> Path:
    folder = tmp_path_factory.mktemp("fitted") / "work"
    parts = ["--valid-fraction", "0.1", "--test-fraction", "0.1", "--workers", "1"]
    assert main(["ingest", str(text_folder), "--base", str(base), "--out", str(folder), *parts]) == 0
    built = ["--embedder", static_encoder, "--chunk-len", "16", "--num-neighbours", "2"]
    assert main(["build", str(folder), *built]) == 0
    assert main(["neighbours", str(folder)]) == 0
    assert main(["fit", str(folder), "--base", str(base), *FIT]) == 0
    return folder


def test_without_neighbours_it_is_the_base(work: Path, base: Path) -> None:
    bare = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    tokens = torch.randint(0, 300, (2, 50), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(retro.load(work / "runs" / "fitted")(tokens), bare(tokens).logits)


def test_it_is_evaluated_inspected_and_sampled(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(work), "fitted", *SHAPE]) == 0
    (results,) = (work / "evaluations").rglob("results.json")
    assert {"off", "on-1", "on-2"} <= set(json.loads(results.read_text())["modes"])
    assert main(["inspect", str(work), "fitted", "--out", str(work / "page.html")]) == 0
    asked = ["The licence permits anyone", "--name", "fitted", "--both", "--max-tokens", "40"]
    assert main(["sample", str(work), *asked]) == 0
    assert main(["knn", str(work), "fitted", *KNN]) == 0
    printed = capsys.readouterr()
    assert "knn-lm" in printed.out
    assert "Loading weights" not in printed.err


def test_rows_are_compared(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--rows", "on-2", "prompt-1", "knn", "--documents", "3", "--seconds", "0"]
    assert main(["evaluate", str(work), "fitted", *SHAPE, *asked]) == 0
    printed = capsys.readouterr().out
    rows = ["off", "on-2", "prompt-1", "knn"]
    assert [
        line.split()[0] for line in printed.splitlines() if line.split()[:1] and line.split()[0] in rows
    ] == rows
    assert "knn: a memory of 64 tokens" in printed
    for words, said in (
        (["--rows", "often-1"], "there is no row 'often-1'"),
        (["--rows", "knn", "--redo"], "expected none of --on, --task and --redo"),
        (["--rows", "knn", "--seconds", "nan"], "seconds is nan"),
        (["--rows", "knn", "--documents", "0"], "there are 0 documents"),
        (["--rows", "on-3"], "num_neighbours is 3"),
    ):
        assert main(["evaluate", str(work), "fitted", *SHAPE, *words]) == 1
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_a_fit_goes_on_from_another(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = work / "runs" / "fitted"
    before = (start / "model.safetensors").read_bytes()
    for word, name in [("fitted", "further"), (str(start), "elsewhere")]:
        assert main(["fit", str(work), "--from", word, "--name", name, *FIT, "--validate-first"]) == 0
    assert (start / "model.safetensors").read_bytes() == before
    further = work / "runs" / "further"
    assert further.joinpath("model.safetensors").read_bytes() != before
    rows = [json.loads(line) for line in further.joinpath("metrics.jsonl").read_text().splitlines()]
    last = [json.loads(line) for line in start.joinpath("metrics.jsonl").read_text().splitlines()][-1]
    assert rows[0]["step"] == 0
    assert rows[0]["valid_on"] == pytest.approx(last["valid_on"])
    # Finished, it is only opened; another start is another run.
    assert main(["fit", str(work), "--from", "fitted", "--name", "further", *FIT, "--validate-first"]) == 0
    capsys.readouterr()
    assert main(["fit", str(work), "--from", "elsewhere", "--name", "further", *FIT, "--validate-first"]) == 1
    assert "--redo" in capsys.readouterr().err


def test_what_is_not_fitted_cannot_be_gone_on_from(
    work: Path, text_folder: Path, static_encoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = workspace_with_run(tmp_path / "trained", text_folder, static_encoder).path
    assert main(["fit", str(work), "--from", "nowhere", "--name", "none", *FIT]) == 1
    assert "smollm2-135m-retro" in capsys.readouterr().err
    assert main(["fit", str(trained), "--from", "retro", "--name", "none", *FIT]) == 1
    assert "is no fitted base" in capsys.readouterr().err
    assert main(["fit", str(trained), "--from", str(work / "runs" / "fitted"), "--name", "none", *FIT]) == 1
    error = capsys.readouterr().err
    assert "expected the same" in error
    assert error.count("\n") == 1


def test_another_tokenizer_is_refused(
    work: Path, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(base, other)
    changed = json.loads((other / "tokenizer.json").read_text())
    changed["model"]["merges"].pop()
    (other / "tokenizer.json").write_text(json.dumps(changed))
    assert main(["fit", str(work), "--base", str(other), "--name", "other", *FIT]) == 1
    assert "is another tokenizer than that of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--base", "nowhere"], "nowhere"),
        (["--base", "BASE", "--seq-len", "256"], "expected at most 128, the longest text"),
        (["--base", "BASE", "--fit.no-pointer", "--fit.no-tune-heads"], "there is nothing to train"),
    ],
)
def test_what_cannot_be_fitted_is_told_in_one_line(
    work: Path, base: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(base) if word == "BASE" else word for word in words]
    assert main(["fit", str(work), "--name", "none", *FIT, *words]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not (work / "runs" / "none").exists()


def test_a_base_that_has_changed_is_refused(work: Path, base: Path) -> None:
    weights = base / "model.safetensors"
    kept = weights.read_bytes()
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        model.model.embed_tokens.weight[5, 5] += 1.0
    model.save_pretrained(base)
    try:
        with pytest.raises(retro.RetroError, match="expected the same weights"):
            retro.load(work / "runs" / "fitted")
    finally:
        weights.write_bytes(kept)


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm-eval is an extra")
def test_the_harness_sees_the_base_when_retrieval_is_off(work: Path, base: Path) -> None:
    from lm_eval.api.instance import Instance

    from retro.harness import RetroLM

    context, continuation = "The licence permits", " anyone to use"
    asked = Instance("loglikelihood", {}, (context, continuation), 0)
    (scored,) = RetroLM(work, "fitted", k=0, window=64).loglikelihood([asked])
    tokenizer = tokenizers.Tokenizer.from_file(str(base / "tokenizer.json"))
    before, ids = tokenizer.encode(context).ids, tokenizer.encode(context + continuation).ids
    assert ids[: len(before)] == before
    with torch.no_grad():
        logits = transformers.AutoModelForCausalLM.from_pretrained(base)(torch.tensor([ids])).logits
    log_probs = logits[0, :-1].log_softmax(-1).gather(-1, torch.tensor(ids)[1:, None])[:, 0]
    assert scored[0] == pytest.approx(float(log_probs[len(before) - 1 :].sum()), rel=1e-6)


def test_it_is_taught_questions_and_answers_them(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {
            "question": f"who permits use {n}?",
            "answers": ["anyone"],
            "ctxs": [{"title": "", "text": "anyone may"}],
        }
        for n in range(8)
    ]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ["--task", "qa", "--questions", str(questions), "--from", "fitted", "--name", "taught"]
    shape = ["--num-steps", "2", "--warmup-steps", "1", "--seq-len", "64", "--num-neighbours", "1"]
    nowhere = ["--task", "qa", "--questions", str(tmp_path / "nowhere.jsonl"), "--from", "fitted"]
    # Refused before the questions are read.
    assert main(["fit", str(work), *nowhere, *shape, "--dropout", "0.1"]) == 1
    assert "dropout is 0.1, and fitted is fitted to a base" in capsys.readouterr().err
    assert main(["fit", str(work), *nowhere, *shape, "--prepended"]) == 1
    assert "would learn nothing from its prompt" in capsys.readouterr().err
    # Without a word about dropout there is none.
    assert main(["fit", str(work), *asked, *shape]) == 0
    capsys.readouterr()
    assert main(["answer", str(work), "taught", "who permits use?", "--max-tokens", "4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["log_prob"] < 0
    assert len(answer["passages"]) == 1
    command = ["answer", str(work), "taught", "who permits use?", "--max-tokens", "4", "--json"]
    given = []
    for reading in ("prompt", "fused"):
        assert main([*command, "--reading", reading]) == 0
        given.append(json.loads(capsys.readouterr().out))
    assert given[0]["answer"] == given[1]["answer"]  # one passage


@pytest.mark.parametrize(("reading", "rate"), [("attention", 3e-2), ("cross-attention", 1e-3)])
def test_the_rate_is_that_of_the_way_of_reading(work: Path, base: Path, reading: str, rate: float) -> None:
    """Numbers of heads learn at a rate that would ruin the weights of a cross-attention."""
    name = f"rate-{reading}"
    fit = ["fit", str(work), "--base", str(base), "--name", name, f"--fit.reading={reading}"]
    assert main([*fit, "--num-steps", "1", "--seq-len", "64", "--warmup-steps", "0"]) == 0
    record = json.loads((work / "runs" / name / "manifest.json").read_text())
    assert record["config"]["training"]["learning_rate"] == rate
