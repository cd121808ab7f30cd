"""Neighbours in the world: links between Wikipedia articles and those of their neighbours."""

from dataclasses import replace

from retro import catalogue
from retro.corpus.links import read_links
from retro.pages.plots import Line, line_plot
from retro.reproduce.claims import Claim, above, together
from retro.reproduce.experiment import Findings, bounds
from retro.reproduce.result import Cell, Figure, Table
from retro.reproduce.scales import Scale
from retro.scoring.link_distance import LinkDistances, link_distances
from retro.study import Study

DUMP = "enwik8"


def link_distance(study: Study, scale: Scale) -> Findings:
    """A datastore of the dump's articles, in a folder of its own, and the dump's own links."""
    run = replace(
        study.run,
        corpus=replace(
            study.run.corpus,
            sources=(DUMP,),
            tokenizer_weights={},
            max_document_bytes=0,
            sample_fraction=scale.wikipedia_fraction,
        ),
        datastore=replace(study.run.datastore, encoder="static"),
    )
    wikipedia = Study(study.folder / "wikipedia", run, [DUMP], study.narrator)
    wikipedia.prepare()
    study.used |= {f"wikipedia: {name}": value for name, value in wikipedia.used.items()}
    with study.narrator.progress("Reading the dump's links"):
        graph = read_links(
            next(
                file for file in catalogue.folder_of(DUMP).iterdir() if file.suffix in (".gz", ".bz2", ".xml")
            )
        )
    found = link_distances(wikipedia.work.neighbours("test"), graph)
    ranks = [1, 2, 5, 10, 20]
    rows: list[list[Cell]] = [
        [f"rank {rank}", found.by_rank[rank - 1].mean] for rank in ranks if rank <= len(found.by_rank)
    ]
    rows.append(["random articles", found.random.mean])
    sentence = (
        f"random articles are {bounds(found.below_random, 3)} links further; each rank adds {bounds(found.rise, 3)} links "
        f"({found.num_documents} articles)"
    )
    claim = Claim("link-distance", together(above(found.below_random), above(found.rise)), sentence)
    figure = Figure(
        "ranks",
        "Mean number of links between an article and those of its chunks' neighbours.",
        plot_link_distances(found),
    )
    return Findings(
        [Table("links between articles", ["neighbour", "mean distance"], rows)], [figure], [claim]
    )


def plot_link_distances(result: LinkDistances) -> str:
    """Mean distance by rank, with its interval, beside that of random articles, as SVG."""
    ranks = list(range(1, len(result.by_rank) + 1))
    means = [entry.mean for entry in result.by_rank]
    bounds = [mean.low for mean in means], [mean.high for mean in means]
    lines = [
        Line("random articles", ranks, [result.random.mean.estimate] * len(ranks), "baseline", "--"),
        Line("neighbours", ranks, [mean.estimate for mean in means], "on", "-", *bounds),
    ]
    return line_plot(
        lines, "rank of the neighbour", "mean link distance", xticks=ranks if len(ranks) <= 20 else None
    )
