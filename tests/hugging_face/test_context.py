"""A base reads only so much: what needs more is refused in one line, or slides where it can."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from retro.cli.main import main
from retro.config import FitConfig
from retro.corpus.tokenizers import Tokenizer
from retro.errors import ConfigError
from retro.fitting.fitted import FittedModel
from retro.generation.request import Choice
from retro.generation.sampler import Sampler
from retro.jobs.retrieval import find_neighbours
from retro.retrieval.retriever import Retriever
from retro.workspace import Workspace
from tests.hugging_face.parts import M

LONGEST = 32
STEPS = ["--batch-size", "2", "--num-steps", "2", "--warmup-steps", "1", "--validate-batches", "1"]


@pytest.fixture
def short_base(base_folder: Path, tmp_path: Path) -> Path:
    """The base, which says of itself that it reads 32 tokens; its weights are the same."""
    folder = Path(shutil.copytree(base_folder, tmp_path / "base"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": LONGEST}))
    return folder


def test_commands_refuse_what_the_base_cannot_read(
    base_work: Workspace, short_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Workspace(Path(shutil.copytree(base_work.path, tmp_path / "work")))
    for split in ("train", "valid"):
        find_neighbours(work, split)
    place = str(work.path)

    def refused(*arguments: str) -> str:
        capsys.readouterr()
        assert main(list(arguments)) == 1
        # Opening the base shows a bar of transformers before.
        lines = capsys.readouterr().err.splitlines()
        told = [line for line in lines if line and "Loading weights" not in line]
        assert len(told) == 1
        return told[0]

    fit = ["fit", place, "--base", str(short_base), "--name", "mine", *STEPS]
    told = refused(*fit, "--seq-len", "64")
    assert "seq_len is 64 tokens; expected at most 32, the longest text that the model reads; shorten" in told
    assert not work.run_path("mine").exists()
    assert main([*fit, "--seq-len", "32"]) == 0
    scoring = ["evaluate", place, "mine", "--split", "valid", "--num-neighbours", "2"]
    told = refused(*scoring, "--window", "64", "--stride", "32")
    assert "the window has 64 tokens; expected at most 32, the longest text that the model reads" in told
    # Nothing was begun that a fitting window would be refused for.
    assert main([*scoring, "--window", "32", "--stride", "16"]) == 0
    sample = ["sample", place, "The licence", "--name", "mine", "--max-tokens", "40"]
    told = refused(*sample)
    assert "expected at most 32, the longest text that the model reads; ask for fewer: --max-tokens" in told
    assert "--window 32" in told
    assert main([*sample, "--window", "32"]) == 0
    sample[2] = "The licence " * 40
    assert "the prompt has" in refused(*sample, "--window", "32")


def test_a_window_slides_over_a_text_of_any_length(
    base_folder: Path, short_base: Path, retriever: Retriever
) -> None:
    """Only distances count for this base, so a window goes where one that reads more would go."""

    def sampler(folder: Path) -> Sampler:
        model = FittedModel(AutoModelForCausalLM.from_pretrained(folder), FitConfig(chunk_len=M))
        assert model.facts.slides
        return Sampler(model.eval(), retriever, window=24)

    asked = {"max_tokens": 3 * LONGEST, "choice": Choice(min_tokens=3 * LONGEST)}
    expected = sampler(base_folder).generate("The licence permits", **asked)
    assert len(expected.continuation) == 3 * LONGEST
    assert sampler(short_base).generate("The licence permits", **asked).tokens == expected.tokens


def test_a_table_of_positions_ends_where_it_ends(retriever: Retriever) -> None:
    tokenizer: Tokenizer = retriever.tokenizer
    config = GPT2Config(
        vocab_size=tokenizer.vocab_size,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=LONGEST,
        bos_token_id=None,
        eos_token_id=None,
    )
    config.bos_token_id = config.eos_token_id = None
    model = FittedModel(GPT2LMHeadModel(config).eval(), FitConfig(chunk_len=M))
    prompt = "The licence"
    room = LONGEST - len(tokenizer.encode(prompt)) + 1
    sampler = Sampler(model, retriever, window=16)
    # The last token is drawn, and never read.
    assert len(sampler.generate(prompt, max_tokens=room, choice=Choice(min_tokens=room)).continuation) == room
    with pytest.raises(ConfigError, match=r"33 tokens; expected at most 32, .*--max-tokens$"):
        sampler.generate(prompt, max_tokens=room + 1)
    with pytest.raises(ConfigError, match="33 tokens; expected at most 32"):
        next(iter(sampler.stream(prompt, max_tokens=room + 1)))
