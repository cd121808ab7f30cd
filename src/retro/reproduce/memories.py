"""RETRO's memory beside kNN-LM's, and what changes when documents are added and deleted."""

from dataclasses import replace

from retro.comparators.knn_lm import BASELINE, CACHE, KNN, size_of_datastore
from retro.config import KnnConfig
from retro.jobs.scoring import knn_lm as run_knn_lm
from retro.pages.plots import Bar, bar_plot
from retro.reproduce.claims import Claim, above, exactly, together
from retro.reproduce.experiment import trio
from retro.reproduce.result import Cell, Figure, Findings, Table
from retro.reproduce.scales import Scale
from retro.scoring.bits_per_byte import Sizes, measure
from retro.scoring.evaluate import Evaluation, on
from retro.scoring.intervals import relative_gain
from retro.scoring.new_facts import measure_new_facts
from retro.scoring.wording import fewer, percent
from retro.study import Study
from retro.wording import counted

FEWER = 40
"""How many times fewer keys count as the paper's 64: short last chunks have keys of their
own."""

HEADING = "Reprinted with permission.\n\n"
"""Shifts the chunks of added documents against those of the evaluated ones, so that no chunk finds an
exact copy of itself."""


def knn_lm(study: Study, scale: Scale) -> Findings:
    """The baseline alone, kNN-LM, the continuous cache and RETRO, all over the same training text."""
    return _beside_knn_lm(study, trio(study).retro, "RETRO[ON]")


def wikitext103(study: Study, scale: Scale) -> Findings:
    """The same on WikiText, in a folder of its own, with a RETROfit of the baseline as in the paper."""
    # The study's sampling, weights and mixture are for its own sources; WikiText is read whole.
    corpus = replace(
        study.run.corpus,
        sources=(scale.wikitext,),
        tokenizer_weights={},
        max_document_bytes=0,
        sample_fraction=1.0,
    )
    training = replace(study.run.training, mixture={})
    run = replace(study.run, corpus=corpus, training=training)
    wikitext = Study(study.folder / "wikitext", run, [scale.wikitext], study.narrator)
    wikitext.prepare()
    wikitext.fit("retrofit", scale.fit_steps)
    findings = _beside_knn_lm(wikitext, wikitext.evaluate("retrofit"), "RETROfit[ON]")
    # The inner study's fingerprints belong to this experiment's provenance.
    study.used |= {f"wikitext: {name}": value for name, value in wikitext.used.items()}
    return replace(findings, claims=())  # the claim is made only once, on the study's own text


def _beside_knn_lm(study: Study, retro: Evaluation, label: str) -> Findings:
    with study.part("kNN-LM", study.folder / "knn", "kNN-LM") as progress:
        other = run_knn_lm(study.opened("baseline"), KnnConfig(), study.run.evaluation, progress=progress)
    # RETRO with the most neighbours it was scored with.
    k = max(study.run.evaluation.num_neighbours)
    size = size_of_datastore(study.work.datastore())
    bits = {mode: other.scores(mode).by_document() for mode in (BASELINE, CACHE, KNN)}
    bits[label] = retro.document_bits(on(k))
    # All modes are resampled over the same documents, so their gains are paired.
    sizes = Sizes.of(study.work.store("test"), study.work.datastore().tokenizer)
    names = {BASELINE: "baseline", CACHE: "continuous cache", KNN: "kNN-LM", label: f"{label}, k = {k}"}
    keys = {KNN: other.size.keys, label: size.keys}
    tuned = {
        mode: f"λ {best.weight:.3g}, sharpness {best.sharpness:.3g}, on validation"
        for mode, best in other.tuned.items()
    }
    rows: list[list[Cell]] = []
    for mode, value in bits.items():
        found = measure(value, sizes)
        gain = "" if mode == BASELINE else percent(relative_gain(value, bits[BASELINE]))
        levels = [found.bits_per_byte, found.perplexity_per_word]
        rows.append([names[mode], *levels, gain, keys.get(mode), tuned.get(mode, "")])
    gain_over_knn = relative_gain(bits[label], bits[KNN])
    # kNN-LM has a key per token, RETRO one per chunk.
    ratio = other.size.keys / size.keys
    sentence = (
        f"{fewer(gain_over_knn, 'than kNN-LM')} with {ratio:.0f} times fewer keys; "
        f"keys of {size.key_bytes / 1e6:,.0f} against {other.size.key_bytes / 1e6:,.0f} MB"
    )
    claim = Claim("knn-lm", together(above(gain_over_knn), exactly(ratio >= FEWER)), sentence)
    headings = ["model", "bits per byte", "perplexity per word", "gain over the baseline", "keys", "tuned"]
    return Findings([Table("memories", headings, rows)], [], [claim])


def new_facts(study: Study, scale: Scale) -> Findings:
    """Second halves of held-out documents: before, while and after they are in the datastore."""
    study.train("retro")
    k = study.run.training.num_neighbours
    with study.narrator.progress("Adding and deleting the test documents"):
        found = measure_new_facts(
            study.opened("retro").model,
            study.work.datastore(),
            study.work.store("test"),
            study.run.evaluation,
            k,
            heading=HEADING,
            scratch=study.folder,
        )
    levels = {
        "without retrieval": found.off,
        "before": found.before,
        "added": found.added,
        "deleted again": found.deleted,
    }
    # Deleting must restore the neighbours too, not only happen to give the same bits.
    same = found.same_bits and found.same_neighbours
    sentence = (
        f"{fewer(found.gain)} on {counted(found.num_documents, 'document')} once they are there; "
        f"deleted, {'the same to the bit' if same else 'not the same'}"
    )
    claim = Claim("new-facts", together(above(found.gain), exactly(same)), sentence)
    rows: list[list[Cell]] = [[name, value] for name, value in levels.items()]
    bars = [
        Bar(name, value.estimate, value.low, value.high, "off" if name.startswith("without") else "on")
        for name, value in levels.items()
    ]
    figure = Figure("bars", "Bits per byte of the second halves.", bar_plot(bars, "bits per byte"))
    table = Table("second halves of the test documents", ["datastore", "bits per byte"], rows)
    return Findings([table], [figure], [claim])
