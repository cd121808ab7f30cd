"""The whole way of a study: from text to a report on what retrieval did.

The demo takes it with a fixed recipe, a study of anybody's text with one that was planned.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from retro.corpus.readers.problems import Tally
from retro.generation.request import Choice
from retro.pages.report import Curves, Report, report_page, report_record, result_rows
from retro.pages.samples import Pair, colour_sample
from retro.pages.sources import SourceFiles
from retro.retrieval.shared_runs import ColouredChunk
from retro.scoring.comparison import Comparison, compare
from retro.scoring.evaluate import Evaluation, on
from retro.stages.files import atomic_write, write_json
from retro.stages.progress import Progress
from retro.study import Study
from retro.wording import counted

REPORT = "report.html"
SAMPLE_TOKENS = 128


@dataclass(frozen=True)
class Words:
    """What a report says in words of the study's own."""

    title: str
    command: str
    corpus: str
    """The name of the text."""
    choices: Sequence[tuple[str, str]] = ()
    """What was chosen for the text, and why."""
    judge: Callable[[Evaluation, Comparison, Curves], str] | None = None
    """Says in plain words whether retrieval helps."""


@dataclass(frozen=True)
class RoadResult:
    """What a study leaves behind."""

    folder: Path
    report: Path
    baseline: Evaluation
    retro: Evaluation
    comparison: Comparison
    verdict: str
    off: list[ColouredChunk]
    on: list[ColouredChunk]
    seconds: dict[str, float]

    def rows(self) -> list[list[str]]:
        return result_rows(self.baseline, self.retro)


def take_road(study: Study, words: Words) -> RoadResult:
    """Train twice, evaluate, sample, report, in a workspace that is prepared.

    Finished parts are reused.
    """
    baseline, retro = study.evaluated("baseline"), study.evaluated("retro")
    comparison = compare(baseline, retro, on(study.run.training.num_neighbours))
    # Validation losses, the same sequences for all three.
    curves = Curves(
        study.curve("baseline", "valid_off"),
        study.curve("retro", "valid_off"),
        study.curve("retro", "valid_on"),
    )
    verdict = words.judge(retro, comparison, curves) if words.judge else ""
    report = study.folder / REPORT
    with study.part("sample and report", report, "Sampling and writing the report") as progress:
        samples = _sample(study, progress)
        found = Report(
            words.title,
            baseline,
            retro,
            comparison,
            curves,
            Pair("The same prompt with retrieval off and on", samples["off"], samples["on"]),
            _facts(study, words.corpus),
            words.command,
            SourceFiles.of(study.work.text_path),
            verdict,
            words.choices,
        )
        write_json(report.with_suffix(".json"), report_record(found))
        with atomic_write(report) as file:
            file.write(report_page(found).encode())
    return RoadResult(
        study.folder,
        report,
        baseline,
        retro,
        comparison,
        verdict,
        samples["off"],
        samples["on"],
        study.clock.seconds,
    )


def _sample(study: Study, progress: Progress) -> dict[str, list[ColouredChunk]]:
    """Continue the first chunk of a test document, with retrieval off and on.

    It is the first document with at least four chunks.
    """
    chunk_len = study.run.model.chunk_len
    store = study.work.store("test")
    opened = study.opened("retro")
    sampler = opened.sampler(study.run.training.num_neighbours)
    # A short document's own text would be too short to compare the continuation with.
    lengths = store.ends - store.starts
    document = next((index for index, length in enumerate(lengths) if length >= 4 * chunk_len), 0)
    prompt = opened.tokenizer.decode(store.document(document)[:chunk_len].tolist())
    choice = Choice(temperature=0.7, top_p=0.9)
    coloured = {}
    for number, mode in enumerate(("off", "on")):
        progress(number, 2)
        # The same seed, so that only the neighbours differ.
        sample = sampler.generate(
            prompt, max_tokens=SAMPLE_TOKENS, choice=choice, seed=0, retrieval=mode == "on"
        )
        coloured[mode] = colour_sample(sample, opened.tokenizer)
    progress(2, 2)
    return coloured


def _left_out(tallies: Mapping[str, Tally]) -> str:
    """What of the sources was not read, by kind."""
    parts = [
        f"{kind}: {tally.documents:,} ({tally.num_bytes / 1e6:,.2f} MB)" for kind, tally in tallies.items()
    ]
    return "; ".join(parts) or "nothing of the sources"


def _facts(study: Study, corpus: str) -> list[tuple[str, str]]:
    """What the report says about the data, the models and the training."""
    run, work = study.run, study.work
    training, datastore = run.training, work.datastore()
    removed = work.removed()
    sizes = {name: study.opened(name).model.num_parameters(embeddings=True) for name in ("baseline", "retro")}
    counts = {split: store.artifact.counts for split, store in work.corpus().stores().items()}
    splits = [
        f"{counted(count['documents'], 'document')} and {counted(count['tokens'], 'token')} in {split}"
        for split, count in counts.items()
    ]
    # The one with the most keys stands for all: most datastores have one.
    index = datastore.snapshot().kinds[0]
    return [
        ("corpus", f"{corpus}: {', '.join(splits)}"),
        (
            "removed",
            f"{counted(removed.get('duplicate', 0), 'exact duplicate')} and "
            f"{counted(removed.get('contaminated', 0), 'training document')} too close to held-out ones",
        ),
        ("left out", _left_out(work.left_out())),
        (
            "datastore",
            f"{counted(len(datastore), 'chunk')} of {run.model.chunk_len} tokens, "
            f"keys of {datastore.config.embedder}, {index} index",
        ),
        (
            "neighbours",
            f"{datastore.config.num_neighbours} saved for each chunk, "
            f"{training.num_neighbours} used in training",
        ),
        ("baseline", f"{sizes['baseline']:,} parameters"),
        (
            "RETRO",
            f"{sizes['retro']:,} parameters, "
            f"cross-attention in layers {list(run.model.cross_attention_layers)}",
        ),
        (
            "training",
            f"{counted(training.num_steps, 'step')} of {training.batch_size} × {training.seq_len} tokens, "
            "the same batches for both",
        ),
        ("evaluation", f"windows of {run.evaluation.window} tokens, stride {run.evaluation.stride}"),
    ]
