import json

import numpy as np
import pytest

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.generation.sequence import Sample
from retro.pages.samples import Pair, colour_sample, sample_record, samples_page, samples_table
from retro.retrieval.datastore import Neighbour
from retro.workspace import Workspace


@pytest.fixture
def tokenizer(workspace: Workspace) -> Tokenizer:
    return workspace.datastore().tokenizer


@pytest.fixture
def sample() -> Sample:
    neighbour = Neighbour(0, 1.0, np.array([20, 21, 22, 23, 24, 25, 0, 0]), "", "doc", "A <title>", "source")
    tokens = [10, 11, 20, 21, 22, 30, 24, 25, 24]
    return Sample(
        tokens,
        prompt_len=5,
        chunk_len=4,
        neighbours=[[neighbour], []],
        prompt="p",
        text="t",
        finish="stop",
        retrieval=True,
    )


def test_colours_show_common_runs_in_both_directions(sample: Sample, tokenizer: Tokenizer) -> None:
    first, second, third = colour_sample(sample, tokenizer)
    assert [span.overlap for span in first.spans] == [None] * 4
    assert [span.overlap for span in second.spans] == [
        3,
        0,
        1,
        2,
    ]  # the run of 20, 21, 22 begins in the chunk before
    assert [span.overlap for span in third.spans] == [None]
    assert (first.prompt_len, second.prompt_len, third.prompt_len) == (4, 1, 0)
    shown = first.neighbours[0]
    assert [span.overlap for span in shown.neighbour] == [0, 0, 1, 0]
    assert [span.overlap for span in shown.continuation] == [1, 2]


def test_a_character_across_chunks_is_shown_whole(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("abc🜚d")
    coloured = colour_sample(Sample(tokens, prompt_len=1, chunk_len=4), tokenizer)
    assert "".join(span.text for chunk in coloured for span in chunk.spans) == "abc🜚d"


def test_the_table_has_a_row_a_chunk_and_a_column_for_what_there_is(
    sample: Sample, tokenizer: Tokenizer
) -> None:
    coloured = colour_sample(sample, tokenizer)
    both = samples_table(coloured[:1], coloured, 2)
    assert both.count("<tr>") == 1 + 3
    assert both.count("<th>") == 4
    assert "A &lt;title&gt;" in both
    assert samples_table(coloured, [], 2).count("<th>") == 1
    assert samples_table([], coloured, 1).count("<th>") == 2
    page = samples_page("T", "n", [Pair("one", coloured, coloured, "why"), Pair("two", [], coloured)])
    assert page.count('<table class="sample">') == 2
    assert "http" not in page


def test_a_record_is_plain_json_and_tells_all(sample: Sample, tokenizer: Tokenizer) -> None:
    record = json.loads(json.dumps(sample_record(sample, tokenizer)))
    assert (record["text"], record["finish"], record["retrieval"], record["log_probs"]) == (
        "t",
        "stop",
        True,
        None,
    )
    assert [chunk["tokens"] for chunk in record["chunks"]] == sample.chunks()
    assert [chunk["prompt_tokens"] for chunk in record["chunks"]] == [4, 1, 0]
    neighbour = record["chunks"][0]["neighbours"][0]
    assert (neighbour["document"], neighbour["title"], neighbour["source"], neighbour["distance"]) == (
        "doc",
        "A <title>",
        "source",
        1.0,
    )
    assert neighbour["continuation"]["overlap"] == [1, 2]
    assert record["chunks"][1]["overlap"] == [3, 0, 1, 2]
