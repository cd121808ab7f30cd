"""A document of the small workspace inspected, against the scores of the whole split."""

import json

import numpy as np
import pytest
import torch

from retro.config import EvaluationConfig
from retro.errors import ConfigError, DataError
from retro.model.retro import Retro
from retro.pages.inspection import LEVELS, inspection_page, inspection_record
from retro.recipes import baseline_of
from retro.retrieval.overlap import longest_common_prefix
from retro.retrieval.shared_runs import ColouredChunk, ColouredNeighbour, Span
from retro.scoring.bits_per_byte import score
from retro.scoring.inspection import InspectedChunk, InspectedDocument, find_document, inspect_document
from retro.workspace import Workspace
from tests.workspaces import small_run

CONFIG = EvaluationConfig(window=32, stride=16)


@pytest.fixture(scope="module")
def model(bert: str) -> Retro:
    torch.manual_seed(1)
    model = Retro(small_run(bert).model).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                0.3 * torch.randn_like(parameter)
            )  # the copying start would leave little difference between off and on
    return model


def test_bits_and_overlaps_are_those_of_the_whole_split(workspace: Workspace, model: Retro) -> None:
    neighbours, number = workspace.neighbours("test"), 2
    store, table = neighbours.store, neighbours.table
    inspected = inspect_document(model, neighbours, number, 2, CONFIG)
    begin, end = store.starts[number], store.ends[number]
    for name, k in (("off", 0), ("on", 2)):
        whole = score(model, store, CONFIG, neighbours, k).bits[begin:end]
        np.testing.assert_allclose(
            [bits for chunk in inspected.chunks for bits in getattr(chunk, name)], whole, atol=1e-4
        )
    assert sum(chunk.saved for chunk in inspected.chunks) == pytest.approx(inspected.off - inspected.on)
    assert abs(inspected.off - inspected.on) > 1e-3
    assert inspected.num_bytes == store.num_bytes[number]
    text = "".join(span.text for chunk in inspected.chunks for span in chunk.coloured.spans)
    assert text == neighbours.datastore.tokenizer.decode(store.document(number).tolist())

    first = table.first[number]
    assert all(span.overlap is None for span in inspected.chunks[0].coloured.spans)
    assert not inspected.chunks[-1].coloured.neighbours
    for place in range(1, len(inspected.chunks)):
        values, _ = neighbours.values(np.array(first + place - 1), 2)
        tokens = np.concatenate([table.tokens(first + place - 1), table.tokens(first + place)])
        expected = longest_common_prefix(tokens, values, store.pad_id)[8:]
        assert [span.overlap for span in inspected.chunks[place].coloured.spans] == expected.tolist()
        shown = inspected.chunks[place - 1].coloured.neighbours
        assert len(shown) == 2
        assert [n.distance for n in shown] == pytest.approx(
            neighbours.distances[first + place - 1, :2].tolist()
        )


def chunk(
    gains: list[float], overlaps: list[int | None], neighbours: list[ColouredNeighbour]
) -> InspectedChunk:
    spans = [Span(f"<{number}>", overlap) for number, overlap in enumerate(overlaps)]
    return InspectedChunk(
        ColouredChunk(spans, neighbours), [1.0 + gain for gain in gains], [1.0] * len(gains), 9
    )


def test_the_page_colours_what_it_should() -> None:
    neighbour = ColouredNeighbour("id&", "A <title>", "source", 0.25, [Span("n", 0)], [Span("f", 7)])
    chunks = [chunk([0.0, 0.01, 9.0], [None] * 3, [neighbour]), chunk([0.8, -9.0, 0.4], [0, 6, 12], [])]
    page = inspection_page(InspectedDocument("doc", "T & t", "source", 2, chunks), "run x")
    first, second = page.split('<section id="c')[1:]
    assert "&lt;0&gt;&lt;1&gt;<mark class=b4" in first  # what gained nothing is plain
    assert 'title="1.0 → 1.0"' not in page
    assert "shares with the neighbours" not in first
    assert "A &lt;title&gt;" in first
    assert '<mark class=o5 title="7 in common">f</mark>' in first
    assert f"<mark class=w{LEVELS}" in second
    assert (
        '<mark class=o0>&lt;0&gt;</mark><mark class=o5 title="12 in common">&lt;1&gt;&lt;2&gt;</mark>'
        in second
    )
    assert "<title>T &amp; t</title>" in page
    assert page.count("<rect") == 2
    assert "http" not in page
    assert "<script" not in page


def test_a_document_of_one_chunk_has_a_page_without_neighbours() -> None:
    page = inspection_page(InspectedDocument("doc", "", "source", 2, [chunk([0.0], [None], [])]))
    assert page.count("<section") == 1
    assert "neighbour 1" not in page


def test_the_record_is_plain_json_and_adds_up(workspace: Workspace, model: Retro) -> None:
    inspected = inspect_document(model, workspace.neighbours("test"), 0, 1, CONFIG)
    record = json.loads(json.dumps(inspection_record(inspected)))
    assert record["off"] == pytest.approx(sum(sum(entry["off"]) for entry in record["chunks"]))
    assert record["chunks"][0]["saved"] == pytest.approx(
        sum(record["chunks"][0]["off"]) - sum(record["chunks"][0]["on"])
    )
    assert len(record["chunks"][0]["neighbours"]) == 1
    assert "".join(record["chunks"][1]["tokens"]) == record["chunks"][1]["text"]


def test_what_cannot_be_looked_at_is_refused(workspace: Workspace, bert: str) -> None:
    with pytest.raises(ConfigError, match="no cross-attention"):
        inspect_document(
            Retro(baseline_of(small_run(bert)).model), workspace.neighbours("test"), 0, 2, CONFIG
        )
    store = workspace.store("test")
    row = store.documents[1]
    assert find_document(store, row["id"]) == find_document(store, f"{row['source']}/{row['id']}") == 1
    with pytest.raises(DataError, match=r"no documents of .* have the id 'absent'"):
        find_document(store, "absent")
