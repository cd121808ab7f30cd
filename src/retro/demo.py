"""The whole way on built-in defaults: from licence texts to a report on what retrieval did."""

from dataclasses import dataclass
from pathlib import Path

from retro.config import RunConfig
from retro.generation.request import Choice
from retro.pages.report import Curves, Report, report_page, report_record, result_rows
from retro.pages.samples import Pair, colour_sample
from retro.retrieval.shared_runs import ColouredChunk
from retro.scoring.comparison import Comparison, compare
from retro.scoring.evaluate import Evaluation, on
from retro.stages.files import atomic_write, write_json
from retro.stages.progress import Narrator, Progress
from retro.study import Study

CORPUS = "licences"
SAMPLE_TOKENS = 128


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


def run_demo(folder: Path, run: RunConfig, narrator: Narrator) -> DemoResult:
    """Fetch, tokenise, build, find neighbours, train twice, evaluate, sample, report.

    Finished parts are reused.
    """
    study = Study(folder, run, [CORPUS], narrator)
    study.prepare()
    baseline, retro = study.evaluated("baseline"), study.evaluated("retro")
    comparison = compare(baseline, retro, on(run.training.num_neighbours))
    report = folder / "report.html"
    with study.part("sample and report", report, "Sampling and writing the report") as progress:
        samples = _sample(study, progress)
        found = Report(
            "RETRO on licence texts",
            baseline,
            retro,
            comparison,
            # Validation losses, the same sequences for all three.
            Curves(
                study.curve("baseline", "valid_off"),
                study.curve("retro", "valid_off"),
                study.curve("retro", "valid_on"),
            ),
            Pair("The same prompt with retrieval off and on", samples["off"], samples["on"]),
            _facts(study),
            f"make demo    # or: retro demo --out {folder.name}",
        )
        write_json(report.with_suffix(".json"), report_record(found))
        with atomic_write(report) as file:
            file.write(report_page(found).encode())
    return DemoResult(
        folder, report, baseline, retro, comparison, samples["off"], samples["on"], study.clock.seconds
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


def _facts(study: Study) -> list[tuple[str, str]]:
    """What the report says about the data, the models and the training."""
    run, work = study.run, study.work
    training, datastore = run.training, work.datastore()
    removed = work.removed()
    sizes = {name: study.opened(name).model.num_parameters(embeddings=True) for name in ("baseline", "retro")}
    counts = {split: store.artifact.counts for split, store in work.corpus().stores().items()}
    splits = [
        f"{count['documents']:,} documents and {count['tokens']:,} tokens in {split}"
        for split, count in counts.items()
    ]
    # The first segment stands for all: the demo's datastore has one.
    index = datastore.snapshot().segments[0].index.kind
    return [
        ("corpus", f"{CORPUS}: {', '.join(splits)}"),
        (
            "removed",
            f"{removed.get('duplicate', 0)} exact duplicates and "
            f"{removed.get('contaminated', 0)} training documents too close to held-out ones",
        ),
        (
            "datastore",
            f"{len(datastore):,} chunks of {run.model.chunk_len} tokens, "
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
            f"{training.num_steps} steps of {training.batch_size} × {training.seq_len} tokens, "
            "the same batches for both",
        ),
        ("evaluation", f"windows of {run.evaluation.window} tokens, stride {run.evaluation.stride}"),
    ]
