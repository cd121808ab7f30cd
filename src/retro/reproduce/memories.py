"""RETRO's memory beside kNN-LM's, and what changes when documents are added and deleted."""

from dataclasses import replace

import numpy as np

from retro.comparators.knn_lm import BASELINE, CACHE, KNN, MemorySize, size_of_datastore
from retro.config import KnnConfig, RetrievalConfig
from retro.jobs.retrieval import find_thinned
from retro.jobs.scoring import knn_lm as run_knn_lm
from retro.pages.plots import Bar, bar_plot
from retro.reproduce.claims import Claim, above, exactly, together
from retro.reproduce.result import Cell, Figure, Findings, Table
from retro.reproduce.scales import Scale
from retro.scoring.bits_per_byte import Sizes, measure
from retro.scoring.evaluate import on
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
    """The baseline alone, kNN-LM, the continuous cache and RETRO, all over the same training text.

    A scale may let both memories hold the same part of that text: a key for each token is many.
    """
    runs = {"RETRO[ON]": "retro"}
    study.train("retro")
    if scale.with_pointer:
        pointing = replace(study.run.model.retrieval or RetrievalConfig(), pointer=True)
        study.fit("pointer", scale.fit_steps, pointing)
        runs["RETROfit[ON] with the pointer"] = "pointer"
    if scale.knn_part == 1.0:
        k = max(study.run.evaluation.num_neighbours)
        bits = {label: study.evaluate(name).document_bits(on(k)) for label, name in runs.items()}
        return _beside_knn_lm(study, bits, k, size_of_datastore(study.work.datastore()))
    k = KnnConfig().num_neighbours  # as many for both, as in the paper
    with study.narrator.progress("Neighbours in a part of the datastore") as progress:
        part = find_thinned(study.work, "test", (scale.knn_part,), k, progress=progress)[scale.knn_part]
    bits = {
        label: study.document_bits(name, f"part-{scale.knn_part:g}-{k}", part, k)
        for label, name in runs.items()
    }
    size = size_of_datastore(study.work.datastore())
    counts = part.artifact.counts
    share = counts["keys"] / size.keys
    thinned = replace(
        size, tokens=counts["tokens"], keys=counts["keys"], key_bytes=round(share * size.key_bytes)
    )
    return _beside_knn_lm(study, bits, k, thinned, scale.knn_part)


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
    k = max(run.evaluation.num_neighbours)
    bits = {"RETROfit[ON]": wikitext.evaluate("retrofit").document_bits(on(k))}
    findings = _beside_knn_lm(wikitext, bits, k, size_of_datastore(wikitext.work.datastore()))
    # The inner study's fingerprints belong to this experiment's provenance.
    study.used |= {f"wikitext: {name}": value for name, value in wikitext.used.items()}
    return replace(findings, claims=())  # the claim is made only once, on the study's own text


def _beside_knn_lm(
    study: Study, retro: dict[str, np.ndarray], k: int, size: MemorySize, part: float = 1.0
) -> Findings:
    """The bits of models that read k neighbours, by label, beside kNN-LM over the same part of the text.

    The first of them makes the claim.
    """
    with study.part("kNN-LM", study.folder / "knn", "kNN-LM") as progress:
        other = run_knn_lm(
            study.opened("baseline"), KnnConfig(), study.run.evaluation, progress=progress, part=part
        )
    label = next(iter(retro))
    bits = {mode: other.scores(mode).by_document() for mode in (BASELINE, CACHE, KNN)} | retro
    # All modes are resampled over the same documents, so their gains are paired.
    sizes = Sizes.of(study.work.store("test"), study.work.datastore().tokenizer)
    names = {BASELINE: "baseline", CACHE: "continuous cache", KNN: "kNN-LM"}
    names |= {label: f"{label}, k = {k}" for label in retro}
    keys = {KNN: other.size.keys} | dict.fromkeys(retro, size.keys)
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
    if part < 1.0:
        sentence += f", both over the same {part:.0%} of the text"
    claim = Claim("knn-lm", together(above(gain_over_knn), exactly(ratio >= FEWER)), sentence, gain_over_knn)
    headings = ["model", "bits per byte", "perplexity per word", "gain over the baseline", "keys", "tuned"]
    return Findings([Table("memories", headings, rows)], [], [claim])


def new_facts(study: Study, scale: Scale) -> Findings:
    """Second halves of held-out documents: before, while and after they are in the datastore."""
    study.made("retro")
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
    claim = Claim("new-facts", together(above(found.gain), exactly(same)), sentence, found.gain)
    rows: list[list[Cell]] = [[name, value] for name, value in levels.items()]
    bars = [
        Bar(name, value.estimate, value.low, value.high, "off" if name.startswith("without") else "on")
        for name, value in levels.items()
    ]
    figure = Figure("bars", "Bits per byte of the second halves.", bar_plot(bars, "bits per byte"))
    table = Table("second halves of the test documents", ["datastore", "bits per byte"], rows)
    return Findings([table], [figure], [claim])
