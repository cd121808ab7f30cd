"""RETRO's memory beside that of kNN-LM, and what changes when documents come and go."""

from retro.config import KnnConfig
from retro.evaluation.claims import Claim, above, exactly, together
from retro.evaluation.evaluate import on
from retro.evaluation.intervals import bootstrap_ratio, relative_gain
from retro.evaluation.knn_evaluation import BASELINE, CACHE, KNN, size_of_datastore
from retro.evaluation.new_facts import measure_new_facts
from retro.evaluation.plots import Bar, bar_plot
from retro.reproduce.experiment import Findings, fewer, percent, trio
from retro.reproduce.result import Cell, Figure, Table
from retro.reproduce.scales import Scale
from retro.study import Study

FEWER = 40
"""Times fewer keys that count as the paper's 64: short last chunks have keys of their own."""

HEADING = "Reprinted with permission.\n\n"
"""Moves the chunks of added documents to another grid than the evaluated ones', so that no chunk finds itself whole."""


def knn_lm(study: Study, scale: Scale) -> Findings:
    """The baseline alone, as kNN-LM and with a continuous cache, and RETRO, all over the same training text."""
    found = trio(study)
    with study.clock.part("kNN-LM", study.folder / "knn"), study.narrator.steps("kNN-LM") as told:
        other = study.work.knn_lm("baseline", KnnConfig(), study.run.evaluation, progress=told)
    k = max(study.run.evaluation.num_neighbours)
    retro, size = found.retro.document_bits(on(k)), size_of_datastore(study.work.datastore())
    documents = {mode: other.scores(mode).by_document() for mode in (BASELINE, KNN, CACHE)}
    tuned = {mode: f"λ {best.weight:.3g}, sharpness {best.sharpness:.3g}, on validation" for mode, best in other.tuned.items()}
    rows: list[list[Cell]] = [
        ["baseline", other.bits_per_byte[BASELINE], "", None, None],
        ["continuous cache", other.bits_per_byte[CACHE], percent(other.gains[CACHE]), None, tuned[CACHE]],
        ["kNN-LM", other.bits_per_byte[KNN], percent(other.gains[KNN]), other.size.keys, tuned[KNN]],
        [f"RETRO[ON], k = {k}", bootstrap_ratio(retro, found.num_bytes), percent(relative_gain(retro, documents[BASELINE])), size.keys, ""],
    ]
    gain, ratio = relative_gain(retro, documents[KNN]), other.size.keys / size.keys
    sentence = f"{fewer(gain)} than kNN-LM with {ratio:.0f} times fewer keys ({size.num_bytes / 1e6:,.0f} against {other.size.num_bytes / 1e6:,.0f} MB)"
    claim = Claim("knn-lm", together(above(gain), exactly(ratio >= FEWER)), sentence)
    return Findings([Table("memories", ["model", "bits per byte", "gain over the baseline", "keys", "tuned"], rows)], [], [claim])


def new_facts(study: Study, scale: Scale) -> Findings:
    """The second halves of held-out documents before they are in the datastore, while they are, and after they were deleted."""
    study.train("retro")
    model, _ = study.work.model("retro")
    k = study.run.training.num_neighbours
    with study.narrator.counting("Adding and deleting the test documents"):
        found = measure_new_facts(
            model, study.work.datastore(), study.work.store("test"), study.run.evaluation, k, heading=HEADING, scratch=study.folder
        )
    levels = {"without retrieval": found.off, "before": found.before, "added": found.added, "deleted again": found.deleted}
    same = found.same_bits and found.same_neighbours
    sentence = f"{fewer(found.gain)} on {found.num_documents} documents once they are there; deleted, {'the same to the bit' if same else 'not the same'}"
    claim = Claim("new-facts", together(above(found.gain), exactly(same)), sentence)
    rows: list[list[Cell]] = [[name, value] for name, value in levels.items()]
    bars = [Bar(name, v.estimate, v.low, v.high, "off" if name.startswith("without") else "on") for name, v in levels.items()]
    figure = Figure("bars", "Bits per byte of the second halves.", bar_plot(bars, "bits per byte"))
    return Findings([Table("second halves of the test documents", ["datastore", "bits per byte"], rows)], [figure], [claim])
