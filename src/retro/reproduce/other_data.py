"""Experiments with their own data: evaluation sets, LAMBADA, Wikipedia's links, and questions."""

from dataclasses import replace

from retro import catalogue
from retro.config import EvaluationConfig
from retro.corpus.links import read_links
from retro.jobs.scoring import evaluate_set, evaluate_task, evaluation_set
from retro.pages.plots import Line, line_plot
from retro.questions.scoring import CLOSED, HEADINGS, SHUFFLED
from retro.questions.synthetic import run_probe
from retro.reproduce.claims import Claim, above, together
from retro.reproduce.experiment import NAMES
from retro.reproduce.result import Cell, Figure, Findings, Table
from retro.reproduce.scales import Scale
from retro.scoring.evaluate import OFF, on
from retro.scoring.intervals import relative_gain
from retro.scoring.link_distance import LinkDistances, link_distances
from retro.scoring.wording import bounds, percent
from retro.study import Study
from retro.wording import counted

LAMBADA = "lambada"
DUMP = "enwik8"
"""The Wikipedia dump of the catalogue."""
RANKS = (1, 2, 5, 10, 20)
"""The ranks that the table of link distances shows."""


def evaluation_sets(study: Study, scale: Scale) -> Findings:
    """Bits per byte on every set of whole documents, and LAMBADA's last words."""
    for name in ("baseline", "retro"):
        study.train(name)
    k = study.run.training.num_neighbours
    config = replace(study.run.evaluation, num_neighbours=(k,))
    # Fetched first, so that a failed download costs no scoring.
    for source in (*scale.sets, LAMBADA):
        with study.narrator.progress(f"Fetching {source}") as progress:
            catalogue.fetch(source.partition("@")[0], progress)
    rows = [_set_row(study, source, config, k) for source in scale.sets]
    headings = ["set", "documents", "seen in training", *NAMES.values(), "gain over the baseline"]
    tables = [Table("bits per byte", headings, rows)] if rows else []
    return Findings([*tables, _last_words(study, config, k)])


def _set_row(study: Study, source: str, config: EvaluationConfig, k: int) -> list[Cell]:
    with study.narrator.progress(f"Neighbours of {source}") as progress:
        # Both models use the same tokens and neighbours.
        found = evaluation_set(study.opened("retro"), source, progress=progress)
    with study.narrator.progress(f"Scoring {source}") as progress:
        baseline = evaluate_set(study.opened("baseline"), found, config, progress)
        retro = evaluate_set(study.opened("retro"), found, config, progress)
    study.used[source] = found.store.fingerprint
    levels = [
        baseline.metrics(OFF).bits_per_byte,
        retro.metrics(OFF).bits_per_byte,
        retro.metrics(on(k)).bits_per_byte,
    ]
    gain = relative_gain(retro.document_bits(on(k)), baseline.document_bits(OFF))
    return [source, len(found.store), found.seen.count, *levels, percent(gain)]


def _last_words(study: Study, config: EvaluationConfig, k: int) -> Table:
    models = {
        "baseline": {OFF: "baseline"},
        "retro": {OFF: NAMES["off"], on(k): NAMES["on"]},
    }
    rows: list[list[Cell]] = []
    for name, modes in models.items():
        with study.narrator.progress(f"LAMBADA: {name}") as progress:
            result = evaluate_task(study.opened(name), LAMBADA, config, progress=progress)
        rows += [[label, *result.modes[mode].values()] for mode, label in modes.items()]
        metrics = list(result.modes[OFF])
    return Table("LAMBADA, the last word, greedy", ["model", *metrics], rows)


def link_distance(study: Study, scale: Scale) -> Findings:
    """How many links lie between Wikipedia articles and the articles of their neighbours.

    The datastore of the dump's articles has a folder of its own; the links come from the dump.
    """
    # Links are between whole articles, so these are not cut, weighted or mixed with other text.
    corpus = replace(
        study.run.corpus,
        sources=(DUMP,),
        tokenizer_weights={},
        max_document_bytes=0,
        sample_fraction=scale.wikipedia_fraction,
    )
    run = replace(study.run, corpus=corpus, datastore=replace(study.run.datastore, embedder="static"))
    wikipedia = Study(study.folder / "wikipedia", run, [DUMP], study.narrator)
    wikipedia.prepare()
    study.used |= {f"wikipedia: {name}": value for name, value in wikipedia.used.items()}
    # The folder also holds the manifest, so the dump is found by its suffix.
    files = catalogue.folder_of(DUMP).iterdir()
    dump = next(file for file in files if file.suffix in (".gz", ".bz2", ".xml"))
    with study.narrator.progress("Reading the dump's links"):
        graph = read_links(dump)
    found = link_distances(wikipedia.work.neighbours("test"), graph)
    ranks = [rank for rank in RANKS if rank <= len(found.by_rank)]
    rows: list[list[Cell]] = [[f"rank {rank}", found.by_rank[rank - 1].mean] for rank in ranks]
    rows.append(["random articles", found.random.mean])
    sentence = (
        f"random articles are {bounds(found.below_random, 3)} links further; "
        f"each rank adds {bounds(found.rise, 3)} links ({counted(found.num_documents, 'article')})"
    )
    claim = Claim("link-distance", together(above(found.below_random), above(found.rise)), sentence)
    caption = "Mean number of links between an article and those of its chunks' neighbours."
    figure = Figure("ranks", caption, plot_link_distances(found))
    table = Table("links between articles", ["neighbour", "mean distance"], rows)
    return Findings([table], [figure], [claim])


def plot_link_distances(result: LinkDistances) -> str:
    """Mean distance by rank with its interval, beside that of random articles, as SVG."""
    ranks = list(range(1, len(result.by_rank) + 1))
    means = [entry.mean for entry in result.by_rank]
    lows, highs = [mean.low for mean in means], [mean.high for mean in means]
    lines = [
        Line("random articles", ranks, [result.random.mean.estimate] * len(ranks), "baseline", "--"),
        Line("neighbours", ranks, [mean.estimate for mean in means], "on", "-", lows, highs),
    ]
    # Beyond 20 ranks a tick for each would not be readable.
    ticks = ranks if len(ranks) <= 20 else None
    return line_plot(lines, "rank of the neighbour", "mean link distance", xticks=ticks)


def questions(study: Study, scale: Scale) -> Findings:
    """A small RETRO, trained to answer from passages whose facts are paired afresh in every question."""
    path = study.work.run_path("questions-probe")
    with study.part("train questions-probe", path, "Training on the probe") as progress:
        found = run_probe(path, progress=progress)
    rows: list[list[Cell]] = [list(row) for row in found.rows()]
    gains = found.gains[CLOSED], found.gains[SHUFFLED]
    sentence = (
        f"on questions that only passages can answer, exact match is {percent(gains[0])} above closed book "
        f"and {percent(gains[1])} above shuffled passages"
    )
    claim = Claim("questions", together(*map(above, gains)), sentence)
    table = Table(f"{counted(found.num_questions, 'question')}, in %", ["answered", *HEADINGS[1:]], rows)
    return Findings([table], [], [claim])
