"""`retro sample` as a user meets it."""

import io
import json
import shutil
from pathlib import Path

import pytest

from retro.cli.main import main
from retro.jobs.training import train_run
from retro.recipes import baseline_of
from tests.workspaces import small_run, small_workspace


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, bert: str) -> str:
    """A workspace with two trained runs."""
    run, folder = small_run(bert), tmp_path_factory.mktemp("sample")
    workspace = small_workspace(folder, text_folder, bert, splits=("train", "valid"))
    for name, config in (("retro", run), ("baseline", baseline_of(run))):
        train_run(workspace, name, config.model, config.training)
    return str(folder)


def records(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict]:
    assert main(["sample", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_json_lines_tell_mode_number_neighbours_and_log_probs(
    capsys: pytest.CaptureFixture[str], work: str
) -> None:
    options = ["--max-tokens", "12", "--both", "--samples", "2", "--log-probs", "--num-neighbours", "3"]
    found = records(capsys, work, "The licence permits", *options)
    assert [(record["retrieval"], record["number"]) for record in found] == [
        (False, 0),
        (False, 1),
        (True, 0),
        (True, 1),
    ]
    assert all(len(record["log_probs"]) == 12 for record in found)
    assert [len(chunk["neighbours"]) for chunk in found[2]["chunks"][:-1]] == [3] * (
        len(found[2]["chunks"]) - 1
    )
    assert found == records(capsys, work, "The licence permits", *options)


def test_the_prompt_comes_from_a_file_or_standard_input(
    capsys: pytest.CaptureFixture[str], work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_text("The licence")
    monkeypatch.setattr("sys.stdin", io.StringIO("The licence"))
    given = [[work, "The licence"], [work, "--file", str(tmp_path / "prompt.txt")], [work, "-"]]
    first, second, third = (records(capsys, *arguments, "--max-tokens", "5") for arguments in given)
    assert first == second == third


def test_a_page_shows_off_and_on(capsys: pytest.CaptureFixture[str], work: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert (
        main(
            [
                "sample",
                work,
                "The licence permits anyone",
                "--max-tokens",
                "20",
                "--both",
                "--html",
                str(page),
            ]
        )
        == 0
    )
    assert "page" in capsys.readouterr().out
    text = page.read_text()
    assert "retrieval off" in text
    assert "neighbour 2" in text
    assert "http" not in text


def test_a_baseline_is_sampled_without_its_datastore(capsys: pytest.CaptureFixture[str], work: str) -> None:
    (record,) = records(
        capsys, work, "The licence permits anyone to", "--name", "baseline", "--max-tokens", "9"
    )
    assert not record["retrieval"]
    assert not any(chunk["neighbours"] for chunk in record["chunks"])


def test_standard_input_that_is_no_text_is_one_line(
    capsys: pytest.CaptureFixture[str], work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"words \xff\xfe"), encoding="utf-8"))
    assert main(["sample", work, "-"]) == 1
    assert "standard input is not UTF-8" in capsys.readouterr().err


def test_given_passages(capsys: pytest.CaptureFixture[str], work: str) -> None:
    (record,) = records(
        capsys,
        work,
        "The licence permits anyone to",
        "--passages",
        "one text",
        "another",
        "a third",
        "--max-tokens",
        "3",
    )
    assert [n["title"] for n in record["chunks"][0]["neighbours"]] == ["passage 1", "passage 2", "passage 3"]


def test_a_run_from_elsewhere_is_sampled_with_any_datastore_of_its_tokenizer(
    capsys: pytest.CaptureFixture[str], work: str, tmp_path: Path
) -> None:
    asked = ["The licence permits anyone to", "--max-tokens", "9"]
    (at_home,) = records(capsys, work, *asked)
    shutil.copytree(Path(work) / "runs" / "retro", tmp_path / "retro")
    (elsewhere,) = records(capsys, str(tmp_path / "retro"), *asked, "--datastore", work)
    assert elsewhere == at_home
    assert at_home["retrieval"]
    assert main(["sample", str(tmp_path / "retro"), *asked]) == 1
    assert "--datastore PATH" in capsys.readouterr().err
    assert records(capsys, str(tmp_path / "retro"), *asked, "--off")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--on", "--off"], "exclude each other"),
        (["x", "--file", "y"], "a prompt and --file were given"),
        ([], "there is no prompt"),
        (["--file", "nowhere.txt"], "nowhere.txt is no file"),
        (["x", "--off", "--exclude", "a"], "--off retrieves nothing"),
        (["x", "--off", "--num-neighbours", "3"], "--off retrieves nothing"),
        (["x", "--off", "--datastore", "y"], "--off retrieves nothing"),
        (["x", "--name", "baseline", "--num-neighbours", "3"], "has no cross-attention"),
        (["x", "--passages", "a", "--sources", "b"], "--passages are not searched"),
        (["x", "--log-probs"], "expected --json"),
        (["x", "--samples", "2", "--temperature", "0"], "all samples are the same"),
        (["x", "--max-tokens", "3", "--min-tokens", "4"], "max_tokens is 3; expected at least 4"),
        (["x", "--top-p", "0"], "top_p is 0.0"),
        (["x", "--num-neighbours", "0"], "num_neighbours is 0"),
        (["x", "--every", "0"], "every is 0"),
        (["x", "--window", "-1"], "window is -1"),
        (["x", "--name", "baseline", "--both"], "has no cross-attention"),
        (["x", "--name", "absent"], "run: retro train"),
        (["a\udc80"], "half a surrogate pair"),
    ],
)
def test_bad_requests_get_one_clear_line(
    capsys: pytest.CaptureFixture[str], work: str, arguments: list[str], message: str
) -> None:
    assert main(["sample", work, *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("retro sample: ")
    assert error.count("\n") == 1


def test_a_text_that_retrieved_nothing_says_so(capsys: pytest.CaptureFixture[str], work: str) -> None:
    """Chunks have 8 tokens; the first is written without neighbours."""
    assert main(["sample", work, "The", "--max-tokens", "2"]) == 0
    told = capsys.readouterr()
    length = int(told.err.split("prompt and sample have ")[1].split(";")[0])
    assert told.err.startswith("! nothing was retrieved: the first chunk has no neighbours and ends after 8")
    assert f"; {8 - length} are missing; give a longer prompt" in told.err
    (record,) = records(capsys, work, "The", "--max-tokens", "20", "--temperature", "0")
    prompt_len = record["chunks"][0]["prompt_tokens"]
    assert main(["sample", work, "The", "--max-tokens", "20"]) == 0
    missing = 8 - prompt_len
    assert f"{missing} fewer than a chunk: the first {missing} new tokens" in capsys.readouterr().err
    assert main(["sample", work, "The", "--max-tokens", "20", "--every", "9"]) == 0
    assert "expected an --every of at most" in capsys.readouterr().err
    for quiet in (["--off"], ["--name", "baseline"]):
        assert main(["sample", work, "The", "--max-tokens", "2", *quiet]) == 0
        assert not capsys.readouterr().err
    assert main(["sample", work, "The licence permits anyone to use it", "--max-tokens", "9"]) == 0
    assert not capsys.readouterr().err
