"""The whole road on embedded defaults: from licence texts to a report that shows what retrieval did."""

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
from retro.workspace import Workspace

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
    """Fetch, tokenise, build, find neighbours, train twice, evaluate, sample, report. Finished parts are reused."""
    study = Study(folder, run, [CORPUS], narrator)
    study.prepare()
    baseline, retro = study.evaluated("baseline"), study.evaluated("retro")
    comparison = compare(baseline, retro, on(run.training.num_neighbours))
    report = folder / "report.html"
    with (
        study.clock.part("sample and report", report),
        narrator.progress("Sampling and writing the report") as told,
    ):
        samples = _sample(study.work, run, told)
        found = Report(
            "RETRO on licence texts",
            baseline,
            retro,
            comparison,
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


def _sample(work: Workspace, run: RunConfig, told: Progress) -> dict[str, list[ColouredChunk]]:
    """Continue the first chunk of the first test document that is a few chunks long, with retrieval off and on."""
    m, store, sampler = (
        run.model.chunk_len,
        work.store("test"),
        work.sampler("retro", run.training.num_neighbours),
    )
    document = next(
        (index for index in range(len(store)) if store.ends[index] - store.starts[index] >= 4 * m), 0
    )
    tokenizer = work.datastore().tokenizer
    prompt = tokenizer.decode(store.document(document)[:m].tolist())
    coloured = {}
    for number, mode in enumerate(("off", "on")):
        told(number, 2)
        sample = sampler.generate(
            prompt,
            max_tokens=SAMPLE_TOKENS,
            choice=Choice(temperature=0.7, top_p=0.9),
            seed=0,
            retrieval=mode == "on",
        )
        coloured[mode] = colour_sample(sample, tokenizer)
    told(2, 2)
    return coloured


def _facts(study: Study) -> list[tuple[str, str]]:
    run, work, removed = study.run, study.work, study.work.removed()
    baseline, retro = (work.model(name)[0] for name in ("baseline", "retro"))
    counts = {split: store.artifact.counts for split, store in work.corpus().stores().items()}
    datastore, training = work.datastore(), run.training
    return [
        (
            "corpus",
            f"{CORPUS}: "
            + ", ".join(
                f"{c['documents']:,} documents and {c['tokens']:,} tokens in {split}"
                for split, c in counts.items()
            ),
        ),
        (
            "removed",
            f"{removed.get('duplicate', 0)} exact duplicates and {removed.get('contaminated', 0)} training documents too close to held-out ones",
        ),
        (
            "datastore",
            f"{len(datastore):,} chunks of {run.model.chunk_len} tokens, keys of {datastore.config.encoder}, {datastore.snapshot().segments[0].index.kind} index",
        ),
        (
            "neighbours",
            f"{datastore.config.num_neighbours} saved for each chunk, {training.num_neighbours} used in training",
        ),
        ("baseline", f"{baseline.num_parameters(embeddings=True):,} parameters"),
        (
            "RETRO",
            f"{retro.num_parameters(embeddings=True):,} parameters, cross-attention in layers {list(run.model.cross_attention_layers)}",
        ),
        (
            "training",
            f"{training.num_steps} steps of {training.batch_size} × {training.seq_len} tokens, the same batches for both",
        ),
        ("evaluation", f"windows of {run.evaluation.window} tokens, stride {run.evaluation.stride}"),
    ]
