"""The paper's evaluation sets: whole documents from elsewhere, and LAMBADA."""

from dataclasses import replace

from retro import catalogue
from retro.config import EvaluationConfig
from retro.reproduce.experiment import NAMES, Findings, percent
from retro.reproduce.result import Cell, Table
from retro.reproduce.scales import Scale
from retro.scoring.evaluate import OFF, on
from retro.scoring.intervals import relative_gain
from retro.study import Study

LAMBADA = "lambada"


def table(study: Study, scale: Scale) -> Findings:
    """Bits per byte on every set, and the last words of LAMBADA."""
    for name in ("baseline", "retro"):
        study.train(name)
    k = study.run.training.num_neighbours
    config = replace(study.run.evaluation, num_neighbours=(k,))
    for source in (*scale.sets, LAMBADA):
        with study.narrator.progress(f"Fetching {source}") as told:
            catalogue.fetch(source.partition("@")[0], told)
    rows = [_set_row(study, source, config, k) for source in scale.sets]
    headings = ["set", "documents", "seen in training", *NAMES.values(), "gain over the baseline"]
    tables = [Table("bits per byte", headings, rows)] if rows else []
    return Findings([*tables, _last_words(study, config, k)])


def _set_row(study: Study, source: str, config: EvaluationConfig, k: int) -> list[Cell]:
    with study.narrator.progress(f"Neighbours of {source}") as told:
        found = study.work.evaluation_set(source, progress=told)
    with study.narrator.progress(f"Scoring {source}") as told_mode:
        baseline = study.work.evaluate_on("baseline", found, config, told_mode)
        retro = study.work.evaluate_on("retro", found, config, told_mode)
    study.used[source] = found.store.fingerprint
    levels = [
        baseline.metrics(OFF).bits_per_byte,
        retro.metrics(OFF).bits_per_byte,
        retro.metrics(on(k)).bits_per_byte,
    ]
    gain = relative_gain(retro.document_bits(on(k)), baseline.document_bits(OFF))
    return [source, len(found.store), found.seen.count, *levels, percent(gain)]


def _last_words(study: Study, config: EvaluationConfig, k: int) -> Table:
    rows: list[list[Cell]] = []
    for name, modes in (("baseline", {OFF: "baseline"}), ("retro", {OFF: NAMES["off"], on(k): NAMES["on"]})):
        with study.narrator.progress(f"LAMBADA: {name}") as told:
            result = study.work.evaluate_task(name, LAMBADA, config, progress=told)
        rows += [[label, *result.modes[mode].values()] for mode, label in modes.items()]
        metrics = list(result.modes[OFF])
    return Table("LAMBADA, the last word, greedy", ["model", *metrics], rows)
