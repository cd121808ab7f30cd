"""Four samples of a fitted model, good and bad, as Markdown: chosen by what retrieval saved, not by taste.

    python benchmarks/gallery.py WORK [RUN …] [--tokens 128] > docs/gallery.md

WORK is a workspace of `retro demo` or `retro study --fitted`, with its scores. Of the documents that were
scored it takes the one on which retrieval saved most, the one on which it saved least, and two at even steps
between them. The first chunk of each is continued without retrieval and with it, by the
most probable tokens. Each RUN is a run's name or folder; `retro` if none is given.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from retro.comparators.rows import Rows
from retro.generation.request import Prompt
from retro.generation.sequence import Sample
from retro.pages.samples import colour_sample
from retro.retrieval.shared_runs import LONGEST
from retro.scoring.wording import part
from retro.showing.forgetting import CHOICE
from retro.showing.road import SCORES, DocumentGain, document_gains
from retro.stages.parts import JSON, Parts
from retro.workspace import OpenRun, open_run


def chosen(gains: Sequence[DocumentGain]) -> dict[str, DocumentGain]:
    """Four documents by their gains, which are sorted."""
    headings = ("where it saves most", "a third down", "two thirds down", "where it saves least")
    return {
        why: gains[round(number * (len(gains) - 1) / (len(headings) - 1))]
        for number, why in enumerate(headings)
    }


def quoted(text: str) -> str:
    """Text as it is, in a block that nothing within it closes."""
    return f"~~~~text\n{text.strip() or '(nothing)'}\n~~~~"


def sources_of(sample: Sample, opened: OpenRun) -> Iterator[str]:
    """What each chunk was written from, and how much of it stands there word for word."""
    chunks = colour_sample(sample, opened.tokenizer)
    for number, chunk in enumerate(chunks[1:], start=1):
        spans = chunk.spans[chunk.prompt_len :]
        shared = sum((span.run or 0) >= LONGEST for span in spans)
        read = ", ".join(
            f"*{found.title or found.document}* ({found.source}, {found.distance:.2f})"
            for found in chunks[number - 1].neighbours
        )
        yield (
            f"- tokens {sample.chunk_len * number + 1} to {sample.chunk_len * number + len(chunk.spans)}: "
            + (f"{shared} of {len(spans)} in runs of {LONGEST} or more; read: {read or 'nothing'}")
        )


def show(work: Path, run: str, num_tokens: int) -> None:
    """The samples of one run."""
    opened = open_run(work, run)
    neighbours, k = opened.neighbours("test"), opened.num_neighbours
    rows = Rows.read(neighbours, opened.tokenizer.token_lengths, Parts(work / SCORES, JSON))
    gains = document_gains(rows, neighbours.store, f"on-{k}")
    opened.model.quicken()
    sampler = opened.sampler(k)
    print(f"## {run}\n")
    for why, document in chosen(gains).items():
        tokens = neighbours.store.document(document.number)[: neighbours.table.chunk_len].tolist()
        prompt = Prompt(tokens, opened.tokenizer.decode(tokens))
        asked = {"max_tokens": num_tokens, "choice": CHOICE}
        off, on = (sampler.generate(prompt, retrieval=mode, **asked) for mode in (False, True))
        print(f"### {document.name}: {why}, {part(document.gain)}\n")
        for heading, text in (
            ("It begins", prompt.text),
            ("Without retrieval", off.text),
            ("With it", on.text),
        ):
            print(f"{heading}:\n\n{quoted(text)}\n")
        print("\n".join(sources_of(on, opened)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("runs", nargs="*", default=["retro"])
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    print("# Gallery\n")
    print(f"`python benchmarks/gallery.py {options.work.name} {' '.join(options.runs)}`\n")
    print(
        "Held-out documents, each continued from its first chunk by the most probable tokens, without\n"
        "retrieval and with it. Which ones is decided by what retrieval saved of the bits of their\n"
        "beginnings where the workspace's own run was scored.\n"
    )
    for run in options.runs:
        show(options.work, run, options.tokens)


if __name__ == "__main__":
    main()
