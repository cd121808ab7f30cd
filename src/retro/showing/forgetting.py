"""One prompt continued without retrieval, with it, and without the document that was worth most to the text.

Taking a document out of one request is what a reader does on the server's page: it is left out of the search,
and nothing else changes. The datastore keeps it. Each sample is kept as it was drawn.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retro.comparators.leaving_out import saved_by_document
from retro.config.as_json import to_dict
from retro.generation.keeping import sample_from_json, sample_to_json
from retro.generation.request import Choice, Prompt, Retrieval
from retro.generation.sequence import Sample
from retro.retrieval.shared_runs import LONGEST
from retro.stages.parts import JSON, Parts
from retro.stages.progress import Progress
from retro.stages.stage import Stage, run_stage
from retro.workspace import OpenRun

CHOICE = Choice(temperature=0.0)
"""The most probable token each time: what stands in a source is then said as it stands there."""


@dataclass(frozen=True)
class TakenOut:
    """A document that was left out of the search, and what was written without it."""

    document: str
    title: str
    sources: tuple[str, ...]
    """Where it was read; several sources may hold editions of it, and all were left out."""
    saved: float
    """Bits that its neighbours saved on the text that was written with them."""
    sample: Sample


@dataclass(frozen=True)
class ThreeSamples:
    """The same prompt three times."""

    off: Sample
    on: Sample
    taken_out: TakenOut | None
    """None if nothing was retrieved that could be taken out."""

    def copied(self, sample: Sample) -> int:
        """How many new tokens of a sample stand in long runs of what was read of the document taken out."""
        if self.taken_out is None:
            return 0
        document = self.taken_out.document
        found = [neighbour for row in self.on.neighbours for neighbour in row]
        read = [neighbour.tokens.tolist() for neighbour in found if neighbour.document == document]
        runs = {tuple(text[i : i + LONGEST]) for text in read for i in range(len(text) - LONGEST + 1)}
        new = sample.continuation
        covered: set[int] = set()
        for start in range(len(new) - LONGEST + 1):
            if tuple(new[start : start + LONGEST]) in runs:
                covered.update(range(start, start + LONGEST))
        return len(covered)


def sample_three(
    opened: OpenRun,
    prompt: Prompt,
    num_neighbours: int,
    max_tokens: int,
    folder: Path,
    progress: Progress,
    command: str,
) -> ThreeSamples:
    """Draw the samples into a folder, or read those that are there."""

    def work(stage: Stage) -> None:
        kept = Parts(stage.path, JSON)
        # As `retro sample` does, so that the command that is told gives the same text.
        opened.model.quicken()
        sampler = opened.sampler(num_neighbours)

        def drawn(name: str, retrieval: bool | Retrieval) -> Sample:
            fields = {"max_tokens": max_tokens, "choice": CHOICE, "retrieval": retrieval}
            return sample_from_json(
                kept.keep(name, lambda: sample_to_json(sampler.generate(prompt, **fields)))
            )

        progress(0, 4)
        drawn("off", False)
        progress(1, 4)
        on = drawn("on", True)
        progress(2, 4)
        saved = kept.keep("saved", lambda: saved_by_document(opened.model, on))
        progress(3, 4)
        if saved:
            drawn("without", Retrieval(exclude=(next(iter(saved)),)))
        progress(4, 4)

    config = {
        "prompt": list(map(int, prompt.tokens)),
        "num_neighbours": num_neighbours,
        "max_tokens": max_tokens,
        "choice": to_dict(CHOICE),
    }
    inputs = {
        "model": opened.run.fingerprint,
        "datastore": opened.datastore().snapshot().version.lineage,
    }
    # Another prompt or another datastore gives other samples, which take the place of these.
    artifact = run_stage(folder, "samples", config, inputs, work, command, renew=True)
    return _read(Parts(artifact.path, JSON))


def _read(kept: Parts[Any]) -> ThreeSamples:
    off, on = (sample_from_json(kept.read(name)) for name in ("off", "on"))
    saved: dict[str, float] = kept.read("saved")
    if not saved:
        return ThreeSamples(off, on, None)
    document, bits = next(iter(saved.items()))
    read = [found for row in on.neighbours for found in row if found.document == document]
    sources = tuple(dict.fromkeys(found.source for found in read))
    without = sample_from_json(kept.read("without"))
    return ThreeSamples(off, on, TakenOut(document, read[0].title, sources, bits, without))
