"""What decontamination removes: the same documents scored while text that is almost theirs can be found, as
the datastore is, and once whatever is alike is taken out."""

from retro.pages.plots import Bar, bar_plot
from retro.reproduce.result import Cell, Figure, Findings, Table
from retro.reproduce.scales import Scale
from retro.scoring.contamination import Contaminated, Memory, measure_contamination
from retro.scoring.intervals import bootstrap_ratio, relative_gain
from retro.scoring.wording import percent
from retro.study import Study
from retro.wording import counted

RUN = "retro"
LIMITS = (0.8, 0.5, 0.2)
"""Similarities that are taken out one after the other; the first is the paper's, and ours by default."""


def decontamination(study: Study, scale: Scale) -> Findings:
    """Bits with what was left out put back, as it is, and without what is alike."""
    study.made(RUN)
    corpus = study.run.corpus
    k = study.run.training.num_neighbours
    with study.narrator.progress("Putting back and taking out what is alike") as progress:
        found = measure_contamination(
            study.opened(RUN).model,
            study.work.datastore(),
            study.work.store("test"),
            study.run.evaluation,
            study.work.contaminated(),
            LIMITS,
            corpus.decontaminate_ngram,
            k,
            # A base is slow to score: as many as the scoreboard has.
            scale.compared_documents if study.is_fitted else 0,
            study.folder,
            progress,
        )
    off = bootstrap_ratio(found.off, found.num_bytes)
    rows: list[list[Cell]] = [["not searched (RETRO[OFF])", "", "", off, ""]]
    bars = [Bar("not searched", off.estimate, off.low, off.high, "off")]
    for state in found.states:
        bits = bootstrap_ratio(state.bits, found.num_bytes)
        saved = percent(relative_gain(state.bits, found.off))
        rows.append([_label(state), _change(state), state.concerned or "", bits, saved])
        bars.append(Bar(_label(state), bits.estimate, bits.low, bits.high, "on"))
    headings = ["the datastore", "changed", "test documents", "bits per byte", "saved of RETRO[OFF]"]
    table = Table(_title(found, corpus.decontaminate_ngram), headings, rows)
    caption = "Bits per byte as what is like the test documents is taken out of the datastore."
    return Findings([table], [Figure("bars", caption, bar_plot(bars, "bits per byte"))])


def _label(state: Memory) -> str:
    if state.came:
        return "with what was left out"
    if state.limit is None:
        return "as it is"
    return f"nothing {100 * state.limit:.0f} % alike"


def _change(state: Memory) -> str:
    if state.came:
        return f"{counted(state.came, 'document')} more"
    return f"{counted(state.went, 'document')} less" if state.went else ""


def _title(found: Contaminated, ngram: int) -> str:
    most = f"the most alike is by {100 * found.most_similar:.0f} %" if found.most_similar else "none is alike"
    return (
        f"beginnings of {counted(len(found.off), 'test document')}; alike by the Jaccard similarity of runs "
        f"of {ngram} tokens: in the datastore as it is {most}"
    )
