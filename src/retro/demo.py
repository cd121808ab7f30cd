"""The whole road on embedded defaults: from licence texts to a report that shows what retrieval did."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from retro.artifacts import atomic_write, write_json
from retro.config import RunConfig
from retro.corpus import catalogue
from retro.corpus.ingest import REPORT
from retro.evaluation.comparison import Comparison, compare
from retro.evaluation.evaluate import Evaluation, on
from retro.evaluation.report import Curves, render, result_rows
from retro.model.retro import Retro
from retro.recipes import baseline_of
from retro.sampling.choice import Choice
from retro.sampling.colours import colour_sample
from retro.sampling.html import STYLE, samples_table
from retro.showing.colours import ColouredChunk
from retro.training.metrics import METRICS, curve, read_metrics
from retro.training.trainer import Report
from retro.workspace import Workspace

CORPUS = "licences"
SAMPLE_TOKENS = 128


@runtime_checkable
class Narrator(Protocol):
    """How the demo tells what it does."""

    def counting(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """A progress bar over something counted."""
        ...

    def steps(self, title: str) -> AbstractContextManager[Callable[[str, int, int], None]]:
        """A progress bar for each of several steps; a step's name ends at a colon, what follows may change."""
        ...

    def scoring(self, title: str) -> AbstractContextManager[Callable[[str, int, int], None]]:
        """A progress bar over the windows of several modes."""
        ...

    def training(self, title: str) -> AbstractContextManager[Callable[[Report], None]]:
        """A progress line of a training run."""
        ...


@dataclass(frozen=True)
class DemoResult:
    """What the demo leaves behind."""

    folder: Path
    report: Path
    baseline: Evaluation
    retro: Evaluation
    comparison: Comparison
    off: list[ColouredChunk]
    on: list[ColouredChunk]
    seconds: dict[str, float]

    def rows(self) -> list[list[str]]:
        return result_rows(self.baseline, self.retro)


class _Clock:
    """Seconds of every stage; those of a stage that was finished in an earlier run are kept from then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    @contextmanager
    def stage(self, name: str, finished: Path) -> Iterator[None]:
        was_finished, started = finished.exists() and name in self.seconds, time.perf_counter()
        yield
        if not was_finished:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 1)
            write_json(self.path, self.seconds)


def run_demo(folder: Path, run: RunConfig, narrator: Narrator) -> DemoResult:
    """Fetch, tokenise, build, find neighbours, train twice, evaluate, sample, report. Finished parts are reused."""
    folder.mkdir(parents=True, exist_ok=True)
    clock, work = _Clock(folder / "seconds.json"), Workspace(folder)

    for name in (CORPUS, run.datastore.encoder):
        with clock.stage(f"fetch {name}", catalogue.folder_of(name)), narrator.counting(f"Fetching {name}") as told:
            catalogue.fetch(name, told)
    with clock.stage("tokens", work.tokens_path / REPORT), narrator.steps("Reading") as told_step:
        corpus = work.ingest([CORPUS], run.corpus, progress=told_step)
    with clock.stage("datastore", work.datastore_path), narrator.counting("Embedding the datastore's chunks") as told:
        work.build(run.datastore, told)
    for split in corpus.stores():
        with (
            clock.stage(f"neighbours of {split}", work.neighbours_path(split)),
            narrator.counting(f"Finding neighbours of {split}") as told,
        ):
            work.find_neighbours(split, told)

    models, evaluations = {}, {}
    for config in (baseline_of(run), run):
        name = "retro" if config.model.uses_retrieval else "baseline"
        with clock.stage(f"train {name}", work.run_path(name)), narrator.training(f"Training {name}") as told_report:
            models[name], _ = work.train(name, config.model, config.training, told_report)
        with clock.stage(f"evaluate {name}", work.evaluation_path(name, "test")), narrator.scoring(f"Evaluating {name}") as told_mode:
            evaluations[name] = work.evaluate(name, "test", run.evaluation, told_mode)
    comparison = compare(evaluations["baseline"], evaluations["retro"], on(run.training.num_neighbours))

    report = folder / "report.html"
    with clock.stage("sample and report", report), narrator.counting("Sampling and writing the report") as told:
        samples = _sample(work, run, told)
        page = render(
            "RETRO on licence texts",
            evaluations["baseline"],
            evaluations["retro"],
            comparison,
            _curves(work),
            _facts(run, work, models["baseline"], models["retro"]),
            samples_table(samples["off"], samples["on"], run.training.num_neighbours),
            STYLE,
            f"make demo    # or: retro demo --out {folder.name}",
        )
        with atomic_write(report) as file:
            file.write(page.encode())
    return DemoResult(
        folder, report, evaluations["baseline"], evaluations["retro"], comparison, samples["off"], samples["on"], clock.seconds
    )


def _sample(work: Workspace, run: RunConfig, told: Callable[[int, int], None]) -> dict[str, list[ColouredChunk]]:
    """Continue the first chunk of the first test document that is a few chunks long, with retrieval off and on."""
    m, store, sampler = run.model.chunk_len, work.store("test"), work.sampler("retro", run.training.num_neighbours)
    document = next((index for index in range(len(store)) if store.ends[index] - store.starts[index] >= 4 * m), 0)
    tokenizer = work.datastore().tokenizer
    prompt = tokenizer.decode(store.document(document)[:m].tolist())
    coloured = {}
    for number, mode in enumerate(("off", "on")):
        told(number, 2)
        sample = sampler.generate(prompt, SAMPLE_TOKENS, Choice(temperature=0.7, top_p=0.9), seed=0, retrieval=mode == "on")
        coloured[mode] = colour_sample(sample, tokenizer)
    told(2, 2)
    return coloured


def _curves(work: Workspace) -> Curves:
    baseline, retro = (read_metrics(work.run_path(name) / METRICS) for name in ("baseline", "retro"))
    return Curves(curve(baseline, "valid_off"), curve(retro, "valid_off"), curve(retro, "valid_on"))


def _facts(run: RunConfig, work: Workspace, baseline: Retro, retro: Retro) -> list[tuple[str, str]]:
    removed = work.removed()
    counts = {split: store.artifact.counts for split, store in work.corpus().stores().items()}
    datastore, training = work.datastore(), run.training
    return [
        (
            "corpus",
            f"{CORPUS}: " + ", ".join(f"{c['documents']:,} documents and {c['tokens']:,} tokens in {split}" for split, c in counts.items()),
        ),
        (
            "removed",
            f"{removed.get('duplicate', 0)} exact duplicates and {removed.get('contaminated', 0)} training documents too close to held-out ones",
        ),
        (
            "datastore",
            f"{len(datastore):,} chunks of {run.model.chunk_len} tokens, keys of {datastore.config.encoder}, {datastore.snapshot().segments[0].index.kind} index",
        ),
        ("neighbours", f"{datastore.config.num_neighbours} saved for each chunk, {training.num_neighbours} used in training"),
        ("baseline", f"{baseline.num_parameters(embeddings=True):,} parameters"),
        (
            "RETRO",
            f"{retro.num_parameters(embeddings=True):,} parameters, cross-attention in layers {list(run.model.cross_attention_layers)}",
        ),
        ("training", f"{training.num_steps} steps of {training.batch_size} × {training.seq_len} tokens, the same batches for both"),
        ("evaluation", f"windows of {run.evaluation.window} tokens, stride {run.evaluation.stride}"),
    ]
