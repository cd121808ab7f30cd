"""What a fitted model has shown, put together for its page."""

from dataclasses import dataclass
from pathlib import Path

from retro.comparators.rows import OFF
from retro.generation.sequence import Sample
from retro.pages.fitted_report import FittedReport, ReportRow, TakenOutWords, fitted_page, fitted_record
from retro.pages.samples import colour_sample
from retro.pages.shell import Made
from retro.pages.side_by_side import Column, new_tokens
from retro.pages.sources import SourceFiles, corpus_words
from retro.showing.forgetting import TakenOut
from retro.showing.road import BASE, FittedResult
from retro.stages.files import atomic_write, write_json
from retro.study import Study
from retro.training.metrics import METRICS, curve, read_metrics
from retro.wording import counted
from retro.workspace import OpenRun

REPORT = "report.html"
PROMPT = "prompt.txt"


@dataclass(frozen=True)
class Shown:
    """A finished report, and where it is."""

    folder: Path
    page: Path
    report: FittedReport
    prompt: Path
    """A file with the text that is continued."""
    document: str
    """The id of the document that was taken out; empty if none was."""


def write_report(study: Study, opened: OpenRun, result: FittedResult, title: str, command: str) -> Shown:
    """Write the page and its JSON twin."""
    found = _report(study, opened, result, title, command)
    path = study.folder / REPORT
    write_json(path.with_suffix(".json"), fitted_record(found))
    with atomic_write(path) as file:
        file.write(fitted_page(found).encode())
    prompt = study.folder / PROMPT
    with atomic_write(prompt) as file:
        file.write(result.samples.on.prompt.encode())
    out = result.samples.taken_out
    return Shown(study.folder, path, found, prompt, out.document if out else "")


def _report(study: Study, opened: OpenRun, result: FittedResult, title: str, command: str) -> FittedReport:
    base, k = opened.run.base_id, result.num_neighbours
    name = Path(base).name
    labels = {
        BASE: (BASE, f"{name}, as it is", "baseline"),
        "off": (OFF, "fitted, retrieval off", "off"),
        "on": (result.on, f"fitted, {counted(k, 'neighbour')}", "on"),
        "prompt": (result.prompt, f"{name}, the same in its prompt", "other"),
    }
    rows = {
        key: ReportRow(
            label, colour, result.rows.result(row, BASE), result.rows.result(row, BASE, result.is_new)
        )
        for key, (row, label, colour) in labels.items()
    }
    return FittedReport(
        title=title,
        base=name,
        num_neighbours=k,
        rows=rows,
        over_prompt=result.rows.result(result.on, result.prompt),
        off_is_base=result.off_is_base,
        num_tokens=len(result.rows.bits(OFF)),
        documents=[(document.name, document.gain) for document in result.gains],
        sampled=result.sampled.name,
        columns=_columns(opened, result),
        taken_out=_taken_out(result),
        curves=_curves(study, opened),
        facts=_facts(study, opened, result),
        seconds=study.clock.seconds,
        made=Made(command, corpus_words(study.work)),
        files=SourceFiles.of(study.work.text_path, *study.memory),
    )


def _columns(opened: OpenRun, result: FittedResult) -> list[Column]:
    """The samples with their colours; in the last one, what it has that the one before has not."""

    def coloured(heading: str, sample: Sample, prefix: str, is_new: list[bool] | None = None) -> Column:
        return Column(heading, colour_sample(sample, opened.tokenizer), prefix, is_new or ())

    samples = result.samples
    columns = [
        coloured("retrieval off", samples.off, "off-"),
        coloured("retrieval on", samples.on, "on-"),
    ]
    out = samples.taken_out
    if out is not None:
        is_new = new_tokens(samples.on.tokens, out.sample.tokens)
        columns.append(coloured(f"on, without {out.title or out.document}", out.sample, "out-", is_new))
    return columns


def _taken_out(result: FittedResult) -> TakenOutWords | None:
    samples = result.samples
    out = samples.taken_out
    if out is None:
        return None
    texts = {"off": samples.off, "on": samples.on, "without": out.sample}
    copied = {name: samples.copied(sample) for name, sample in texts.items()}
    return TakenOutWords(_name(out), out.saved, copied, len(samples.on.continuation))


def _name(out: TakenOut) -> str:
    """The document as a person calls it, and where it was read."""
    title = f"{out.title} ({out.document})" if out.title not in ("", out.document) else out.document
    return f"{title} in {' and '.join(out.sources)}"


def _curves(study: Study, opened: OpenRun) -> dict[str, tuple[list[int], list[float]]]:
    """Losses during the fit, if the run was fitted here."""
    if not opened.is_at_home:
        return {}
    rows = read_metrics(opened.path / METRICS)
    return {mode: curve(rows, f"valid_{mode}") for mode in ("off", "on")}


def _facts(study: Study, opened: OpenRun, result: FittedResult) -> list[tuple[str, str]]:
    """What the report says about data, model and rules."""
    datastore = opened.datastore()
    counts = {split: store.artifact.counts for split, store in study.work.corpus().stores().items()}
    splits = [
        f"{counted(count['documents'], 'document')} and {counted(count['tokens'], 'token')} in {split}"
        for split, count in counts.items()
    ]
    record = opened.run.record
    steps, training = record.get("counts", {}).get("steps", 0), record.get("training", {})
    memory = f", among them {' and '.join(study.memory)}" if study.memory else ""
    kept = ". What only the memory holds was not compared: its overlap is told above" if study.memory else ""
    return [
        ("text", "; ".join(splits)),
        (
            "datastore",
            f"{counted(datastore.snapshot().num_documents, 'document')}{memory}: "
            f"{counted(len(datastore), 'chunk')} of {datastore.chunk_len} tokens, "
            f"keys of {datastore.config.embedder}",
        ),
        ("base", f"{opened.run.base_id}, frozen, checksum {record['model']['base'].get('checksum', '')}"),
        (
            "additions",
            f"{counted(record.get('counts', {}).get('trained', 0), 'weight')}, "
            f"{counted(steps, 'step')} of {training.get('batch_size')} × {training.get('seq_len')} tokens, "
            f"{opened.path.name}",
        ),
        (
            "scored",
            f"the first tokens, at most {study.run.evaluation.window}, of "
            f"{counted(len(result.gains), 'test document')} drawn by chance; the same "
            f"{counted(result.num_neighbours, 'neighbour')} a chunk in every row that reads any",
        ),
        ("sampled", "the most probable token each time"),
        (
            "held out",
            "test documents by document; training documents with a 13-gram Jaccard similarity of 0.8 or more "
            f"to one of them were removed{kept}",
        ),
    ]
