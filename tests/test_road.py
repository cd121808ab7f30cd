"""The whole road, by the functions behind the commands: text to a sample, and the demo's report."""

import json
from pathlib import Path

import pytest

from retro import catalogue
from retro.cli.main import main
from retro.corpus import readers
from retro.corpus.documents import Document
from retro.demo import run_demo
from retro.stages.stage import Artifact
from retro.workspace import Workspace
from tests.workspaces import Silent, small_run

MODEL = [
    "--model.d-model",
    "16",
    "--model.num-layers",
    "2",
    "--model.num-heads",
    "2",
    "--model.head-dim",
    "8",
    "--model.ffw-dim",
    "32",
    "--model.chunk-len",
    "8",
    "--model.retrieval.cross-attention-layers",
    "2",
    "--model.retrieval.encoder.d-model",
    "16",
    "--model.retrieval.encoder.num-heads",
    "2",
    "--model.retrieval.encoder.head-dim",
    "8",
    "--model.retrieval.encoder.ffw-dim",
    "32",
    "--seq-len",
    "32",
    "--batch-size",
    "2",
    "--num-steps",
    "8",
    "--warmup-steps",
    "2",
]


def test_text_to_sample_by_commands(
    tmp_path: Path, text_folder: Path, bert: str, capsys: pytest.CaptureFixture[str]
) -> None:
    work = str(tmp_path / "work")
    corpus = ["--vocab-size", "320", "--valid-fraction", "0.15", "--test-fraction", "0.15"]
    assert main(["ingest", str(text_folder), "--out", work, *corpus]) == 0
    assert main(["build", work, "--embedder", bert, "--chunk-len", "8", "--num-neighbours", "4"]) == 0
    assert main(["neighbours", work]) == 0
    assert main(["train", work, *MODEL]) == 0
    assert main(["train", work, "--baseline", *MODEL]) == 0
    fit = [
        argument.replace("--model.retrieval.", "--fit.")
        for argument in MODEL[MODEL.index("--model.retrieval.cross-attention-layers") :]
    ]
    assert (
        main(
            [
                "fit",
                work,
                *fit,
                "--sample-every",
                "8",
                "--sample-tokens",
                "4",
                "--sample-prompt",
                "The licence",
            ]
        )
        == 0
    )
    assert '"sample": "The licence' in (tmp_path / "work" / "runs" / "retrofit" / "metrics.jsonl").read_text()
    for name in ("retro", "baseline", "retrofit"):
        assert (
            main(["evaluate", work, name, "--window", "32", "--stride", "16", "--num-neighbours", "1", "2"])
            == 0
        )
    shown = capsys.readouterr().out
    assert "on-2" in shown
    off = [
        json.loads((tmp_path / "work" / "evaluations" / name / "test" / "results.json").read_text())["modes"][
            "off"
        ]
        for name in ("baseline", "retrofit")
    ]
    assert off[0] == off[1]  # the baseline is in there, untouched
    assert main(["sample", work, "The licence permits anyone to use", "--max-tokens", "12", "--both"]) == 0
    shown = capsys.readouterr().out
    assert "retrieval off" in shown
    assert "retrieval on" in shown
    assert "distance" in shown


def test_the_demo_reports_and_reuses(
    tmp_path: Path, texts: list[str], bert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo itself, on a small corpus and encoder in place of the fetched ones."""
    monkeypatch.setitem(
        readers.READERS,
        "licences",
        lambda: (Document(str(n), text, "licences", f"T{n}") for n, text in enumerate(texts)),
    )
    monkeypatch.setattr(catalogue, "fetch", lambda name, progress: None)
    monkeypatch.setattr(catalogue, "fetched", lambda name: Artifact(tmp_path, {"fingerprint": "small"}))
    monkeypatch.setattr(catalogue, "folder_of", lambda name: tmp_path)
    monkeypatch.setattr(catalogue, "fetch_if_missing", lambda *_: None)
    first = run_demo(tmp_path / "demo", small_run(bert), Silent())
    page = first.report.read_text()
    assert page.count("<svg") == 5
    assert "http" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("https://matplotlib.org", "")  # nothing is loaded from elsewhere
    assert "RETRO[ON], k = 2" in page
    twin = json.loads(first.report.with_suffix(".json").read_text())
    assert twin["results"]["retro"]["on-2"]["bits_per_byte"]["estimate"] == first.retro.bits_per_byte("on-2")
    written = json.loads((tmp_path / "demo" / "seconds.json").read_text())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "demo").rglob("manifest.json")}
    again = run_demo(tmp_path / "demo", small_run(bert), Silent())
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert again.rows() == first.rows()
    assert json.loads((tmp_path / "demo" / "seconds.json").read_text()) == written
    assert Workspace(tmp_path / "demo").run("retro").model.config.uses_retrieval
