"""The plugin with the harness, where it is installed; without it, the message that says how to get it."""

import gzip
import json
import math
import sys
from pathlib import Path

import pytest

from retro import catalogue
from retro.cli.main import main
from retro.jobs.scoring import evaluate_task
from retro.stages.stage import Artifact
from retro.workspace import Workspace
from tests.scoring.runs import workspace_with_run

pytestmark = pytest.mark.filterwarnings("default")  # the harness's and its libraries' own

PASSAGES = [
    ("The licence permits anyone to use and", " share"),
    ("Without any warranty of fitness or", " merit"),
    ("Copy", " this"),
]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Workspace:
    return workspace_with_run(tmp_path_factory.mktemp("harness") / "work", text_folder, static_encoder)


@pytest.fixture
def lambada(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three passages in the place of the fetched file, and caches of this test's own."""
    lines = [
        json.dumps({"idx": n, "request": {"context": c, "continuation": t}})
        for n, (c, t) in enumerate(PASSAGES)
    ]
    (tmp_path / "requests.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    monkeypatch.setattr(catalogue, "fetched", lambda name: Artifact(tmp_path, {"fingerprint": "small"}))
    monkeypatch.setattr(catalogue, "fetch_if_missing", lambda *_: None)
    monkeypatch.setenv("RETRO_CACHE_DIR", str(tmp_path / "cache"))


def test_without_the_harness_one_line_says_how_to_get_it(
    work: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if it were not installed: Python refuses to import a module whose entry is None.
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.models", None)
    monkeypatch.delitem(sys.modules, "retro.harness", raising=False)
    assert main(["harness", str(work.path), "retro"]) == 1
    assert "pip install 'retro-lm[harness]'" in capsys.readouterr().err


def test_the_harness_and_our_own_task_agree_on_last_words(
    work: Workspace, lambada: None, tmp_path: Path
) -> None:
    pytest.importorskip("lm_eval")
    from retro.config import EvaluationConfig

    out = tmp_path / "results.json"
    assert (
        main(
            [
                "harness",
                str(work.path),
                "retro",
                "--window",
                "32",
                "--num-neighbours",
                "0",
                "2",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    ours = evaluate_task(work.run("retro"), "lambada", EvaluationConfig(window=32, stride=16)).modes
    for k, mode in (("0", "off"), ("2", "on-2")):
        theirs = json.loads(out.read_text())[k]["retro_lambada"]
        assert theirs["acc,none"] == ours[mode]["accuracy"].estimate
        assert theirs["perplexity,none"] == pytest.approx(ours[mode]["perplexity of a word"].estimate)


@pytest.mark.parametrize("k", [0, 2])
def test_requests_of_every_kind(work: Workspace, k: int) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.api.registry import get_model

    model = get_model("retro").create_from_arg_string(
        f"work={work.path},run=retro,k={k},window=32", {"batch_size": "auto", "device": None}
    )

    def ask(kind: str, *arguments: object) -> Instance:
        return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)

    greedy, sampled = (
        {"until": ["."], "max_gen_toks": 6},
        {"do_sample": True, "temperature": 0.7, "until": ".", "max_gen_toks": 3},
    )
    texts = model.generate_until(
        [ask("generate_until", "The licence permits", settings) for settings in (greedy, sampled, greedy)]
    )
    assert texts[0] == texts[2]
    assert "." not in texts[0] + texts[1]
    ((log_prob, is_greedy), (other, _)) = model.loglikelihood(
        [ask("loglikelihood", "The licence permits", text) for text in (texts[0], " anyone")]
    )
    assert is_greedy
    assert other < 0 > log_prob
    text = "The licence permits anyone to use this software.\n" * 3
    (rolling,) = model.loglikelihood_rolling([ask("loglikelihood_rolling", text)])
    ((prompted, _),) = model.loglikelihood([ask("loglikelihood", "", text)])
    assert rolling == pytest.approx(prompted)
    assert rolling < -math.log(model.sampler.tokenizer.vocab_size)
