"""The model that comes with the package: fitted to a mixture of the catalogue, scored, put into `models/`.

    python benchmarks/ship_weights.py WORK [--steps 480] [--fraction 0.5] [--documents 6] [--out models/NAME]

One command makes all of it, and goes on where it was interrupted: it ingests the sources with the base's
tokenizer, builds a datastore, finds neighbours, fits, scores held-out documents of every source and of
sources that were not fitted to, copies the additions, and writes the card. Other steps want another WORK.
"""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from retro import catalogue, recipes, shipped
from retro.card import write_card
from retro.cli.console import RichNarrator
from retro.comparators.rows import RowResult, Rows, score_windows, scorer_of
from retro.config import CorpusConfig, DatastoreConfig, EvaluationConfig, RunConfig
from retro.scoring.windows import beginnings
from retro.scoring.wording import part, percent
from retro.stages.parts import JSON, Parts
from retro.stages.stage import CARD
from retro.study import Study
from retro.workspace import OpenRun, open_run

NAME = "smollm2-135m-retro"
BASE = "smollm2"
RUN = "fitted"
ROWS = ("off", "on-2", "prompt-2")
WINDOW = 512
MIXTURE = {"api-prose": 0.3, "wikipedia": 0.15, "news": 0.15, "reviews": 0.15, "sotu": 0.1, "stdlib": 0.15}
"""How often the documents of each source are read; sources go by the names of their documents."""
SOURCES = ("api-prose", "wikipedia-2016", "news", "reviews", "sotu", "stdlib")
UNSEEN: dict[str, tuple[str, ...]] = {
    "django-docs-5.2": ("django-docs-3.2", "django-docs-4.2"),
    "kjv": ("asv",),
    "licences": (),
}
"""Sources that were not fitted to, each with what else its datastore holds."""
CANNOT = """\
## What it cannot do

- It knows no more than its base without a datastore: without neighbours it is the base, bit for bit.
- It was fitted with static keys, two neighbours a chunk and chunks of 64 tokens. More neighbours can be
  read; other chunks cannot.
- It begins to read when the first chunk of 64 tokens is complete. A short question finds nothing by itself.
- It reads what is near, and says what it reads: where neighbours look alike and say something else, as in
  source code, there is little to gain, and where they are wrong it repeats them.
- A base of 135 M parameters, quantised to four bits before it got here, does not reason over what it reads.
"""
SCORED = """\
## Scores

Bits per byte on the beginnings, up to 512 tokens, of held-out documents, and what is saved of the base's,
with 95 % intervals over documents. Sources it was fitted to:

{seen}

Sources it was not fitted to:

{new}
"""
TEXT = """\
## Licences

The additions are Apache-2.0, as the base is; of the text they hold nothing. They were fitted to:

{fitted}

And scored on, besides:

{scored}
"""


def config(steps: int, fraction: float) -> RunConfig:
    run = recipes.pretrained()
    training = replace(
        run.training,
        num_steps=steps,
        # A third of what few steps take: there are many, and the sources pull in different directions.
        learning_rate=1e-2,
        min_learning_rate=1e-3,
        warmup_start=1e-3,
        warmup_steps=min(10, steps),
        validate_every=max(1, steps // 10),
        checkpoint_every=max(1, steps // 30),
        mixture=MIXTURE,
    )
    corpus = CorpusConfig(
        sources=SOURCES,
        tokenizer=BASE,
        sample_fraction=fraction,
        # Some sources are few documents.
        test_fraction=0.08,
        valid_fraction=0.02,
    )
    return replace(_base(run, corpus), name=NAME, training=training)


def unseen(source: str) -> RunConfig:
    corpus = CorpusConfig(sources=(source,), tokenizer=BASE, test_fraction=0.05, valid_fraction=0.0)
    return _base(recipes.pretrained(), corpus)


def _base(run: RunConfig, corpus: CorpusConfig) -> RunConfig:
    return replace(
        run,
        corpus=corpus,
        datastore=DatastoreConfig(embedder="static", num_neighbours=10),
        evaluation=EvaluationConfig(window=WINDOW, stride=WINDOW),
    )


def scored(opened: OpenRun, folder: Path, num_documents: int, title: str) -> dict[str, Rows]:
    """Every row on the same beginnings, so many of each source; by source."""
    neighbours = opened.neighbours("test")
    windows = beginnings(neighbours.table, num_documents, WINDOW, each=True)
    kept = Parts(folder, JSON)
    found = [kept.read(str(window.start)) if kept.has(str(window.start)) else {} for window in windows]
    if not all(set(ROWS) <= set(rows) for rows in found):
        scorers = {row: scorer_of(row, opened.model, neighbours) for row in ROWS}
        with RichNarrator().progress(f"Scoring {title}") as progress:
            score_windows(windows, scorers, kept, progress)
    lengths = opened.tokenizer.token_lengths
    # These windows alone: an earlier run may have scored others.
    starts: dict[str, list[int]] = {}
    for window in windows:
        starts.setdefault(neighbours.store.documents[window.document]["source"], []).append(window.start)
    return {
        source: Rows(neighbours, lengths, {start: kept.read(str(start)) for start in mine})
        for source, mine in sorted(starts.items())
    }


def table(results: dict[str, Rows]) -> str:
    head = "| source | documents | off | on, 2 neighbours | saved | by the same in the prompt |"
    lines = [head, "|---|---|---|---|---|---|"]
    for source, rows in results.items():
        on, prompt = rows.result("on-2"), rows.result("prompt-2")
        lines.append(
            f"| {source} | {on.num_documents} | {on.other:.4f} | {on.bits_per_byte.estimate:.4f} | "
            f"{_gain(on)} | {_gain(prompt)} |"
        )
    return "\n".join(lines)


def _gain(result: RowResult) -> str:
    """With its interval, which one document does not have."""
    return percent(result.gain) if result.num_documents > 1 else part(result.gain.estimate)


def licences(sources: Sequence[str]) -> str:
    """What the catalogue says of each source."""
    rows = [
        f"| {name} | {catalogue.ENTRIES[name].description} | {catalogue.ENTRIES[name].licence} |"
        if name in catalogue.ENTRIES
        else f"| {name} | {catalogue.LOCAL[name]} | PSF-2.0 |"
        for name in sources
    ]
    return "\n".join(["| source | what | licence |", "|---|---|---|", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--fraction", type=float, default=0.5, help="of each source's documents")
    parser.add_argument("--documents", type=int, default=6, help="scored of each source")
    parser.add_argument("--out", type=Path, default=shipped.FOLDER.resolve() / NAME)
    options = parser.parse_args()
    study = Study(options.work, config(options.steps, options.fraction), SOURCES, RichNarrator(), say=print)
    study.prepare()
    study.fit_base(RUN)
    opened = study.opened(RUN)
    places = options.work / "scores"
    seen = scored(opened, places / "seen", options.documents, "what was fitted to")
    new: dict[str, Rows] = {}
    for source, memory in UNSEEN.items():
        folder = options.work / "unseen" / source
        Study(folder, unseen(source), [source], RichNarrator(), memory=memory).prepare(splits=("test",))
        elsewhere = open_run(folder, str(opened.path))
        new |= scored(elsewhere, places / source, 3 * options.documents, source)
    shipped.ship(opened.path, options.out)
    write_card(options.out)
    settings = {"--steps": options.steps, "--fraction": options.fraction, "--documents": options.documents}
    words = [str(word) for pair in settings.items() for word in pair]
    command = shlex.join(["python", "benchmarks/ship_weights.py", options.work.name, *words])
    sections = [
        SCORED.format(seen=table(seen), new=table(new)),
        TEXT.format(fitted=licences(SOURCES), scored=licences(list(UNSEEN))),
        CANNOT,
        f"## How it was made\n\n```bash\n{command}\n```\n",
    ]
    card = options.out / CARD
    # Transformers opens folders; by its name alone it is ours to find.
    head = card.read_text().replace(f'from_pretrained("{NAME}")', f'from_pretrained("models/{NAME}")')
    card.write_text("\n".join([head, *sections]))
    print(card.read_text())


if __name__ == "__main__":
    main()
