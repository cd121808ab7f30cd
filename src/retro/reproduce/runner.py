"""Run experiments and collect the findings of all of them on one page."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from retro.config.as_json import to_dict
from retro.errors import ConfigError
from retro.pages.shell import Made
from retro.pages.sources import corpus_words
from retro.reproduce import (
    ablation,
    contamination,
    language_modelling,
    memories,
    other_data,
    scaling,
    scoreboard,
)
from retro.reproduce.experiment import Experiment, run_seeds
from retro.reproduce.page import render
from retro.reproduce.result import Result
from retro.reproduce.scales import SCALES, Scale
from retro.stages.files import atomic_write
from retro.stages.progress import Narrator
from retro.study import Study

EXPERIMENTS: dict[str, Experiment] = {
    "table-retrieval": Experiment(
        "Retrieval off and on",
        "RETRO[ON] is far below the baseline on every set, and RETRO[OFF] close to it.",
        language_modelling.retrieval,
        seeded=True,
    ),
    "figure-model-size": Experiment(
        "Scaling of the model",
        "RETRO is better than the baseline at all of four sizes, and the gain does not shrink.",
        scaling.model_size,
    ),
    "figure-datastore-size": Experiment(
        "Scaling of the datastore",
        "From 4 billion tokens to 1.7 trillion the bits fall steadily.",
        scaling.datastore_size,
        seeded=True,
    ),
    "figure-neighbours": Experiment(
        "More neighbours",
        "Trained with 2, the smallest model improves up to 10 neighbours, the largest up to 40.",
        scaling.num_neighbours,
        seeded=True,
    ),
    "figure-leakage": Experiment(
        "Leakage",
        "Retrieval models gain more from leaked chunks than baselines, "
        "and stay ahead on chunks that share at most an eighth.",
        language_modelling.leakage,
        seeded=True,
    ),
    "figure-decontamination": Experiment(
        "Decontamination",
        "Training documents that are 80 % like a test document are removed; what that does is not shown.",
        contamination.decontamination,
    ),
    "figure-sources": Experiment(
        "Gains by source",
        "On the Pile the gain differs from subset to subset.",
        language_modelling.sources,
        seeded=True,
    ),
    "figure-retrofit": Experiment(
        "RETROfitting",
        "With 3 % of the training sequences a RETROfit comes close to RETRO from scratch.",
        language_modelling.retrofit,
        seeded=True,
    ),
    "table-ablation": Experiment(
        "Ablations",
        "F alone gives 56 % of the gain and N alone 22 %; conditioning and positions help a little.",
        ablation.table,
        seeded=True,
    ),
    "table-knn-lm": Experiment(
        "kNN-LM",
        "On Wikitext103 RETRO over Wikipedia equals kNN-LM over the same text (18.97 and 19.54) "
        "with 64 times fewer keys.",
        memories.knn_lm,
    ),
    "table-wikitext103": Experiment(
        "Wikitext103",
        "Test perplexity 22.96 for the baseline, 19.54 for kNN-LM and 18.97 for the RETROfit, "
        "all over Wikipedia.",
        memories.wikitext103,
    ),
    "table-new-facts": Experiment(
        "New facts",
        "A retrieval model is kept up to date by changing its datastore, without training.",
        memories.new_facts,
        seeded=True,
    ),
    "figure-link-distance": Experiment(
        "Neighbours in the world",
        "The neighbours of a Wikipedia chunk are of articles fewer links away than random ones, "
        "and the first are the nearest.",
        other_data.link_distance,
    ),
    "table-datasets": Experiment(
        "Evaluation sets",
        "RETRO is better on Wikitext103, new Wikipedia articles, Curation Corpus and LAMBADA at every size.",
        other_data.evaluation_sets,
    ),
    "table-questions": Experiment(
        "Question answering",
        "On Natural Questions 45.5 % exact match with passages, 30.4 % for the baseline closed book. "
        "Here a synthetic task.",
        other_data.questions,
    ),
    "table-scoreboard": Experiment(
        "Scoreboard",
        "RETRO is compared with kNN-LM, SPALM, the continuous cache, REALM, RAG and FiD in words, and with "
        "kNN-LM in numbers, not at equal cost.",
        scoreboard.table,
    ),
}


def reproduce(
    names: Sequence[str], scale: Scale, folder: Path, narrator: Narrator, sources: Sequence[str] = ()
) -> list[Result]:
    """Run the named experiments, or all, and write JSON and pictures of each below `reproduce/`.

    The report.html there shows every experiment that was ever run in this folder.
    """
    # Checked before anything is prepared, which may take hours.
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise ConfigError(
            f"there is no experiment {unknown[0]!r}; expected one of {', '.join(EXPERIMENTS)}, or all"
        )
    others = [name for name in names if scale.experiments and name not in scale.experiments]
    if others:
        raise ConfigError(
            f"the scale {scale.name!r} is not for {others[0]}; expected {', '.join(scale.experiments)}"
        )
    if not (sources or scale.sources):
        raise ConfigError(
            f"the scale {scale.name!r} has no data of its own; expected yours; add: --sources NAME …"
        )
    # Text of one's own is not what the scale's memory was chosen for.
    memory = () if sources else scale.memory
    study = Study(folder, scale.run, sources or scale.sources, narrator, memory=memory)
    study.prepare()
    prepared = dict(study.used)
    # The command in the provenance must be complete: it is what a reader would run.
    more = ["--documents", str(scale.compared_documents)] if _is_changed(scale) else []
    if sources:
        more += ["--sources", *sources]
    given = "".join(f" {word}" for word in more)
    results = []
    for name in names or scale.experiments or EXPERIMENTS:
        study.used = dict(prepared)  # so that each experiment lists only what it used itself
        experiment = EXPERIMENTS[name]
        findings = run_seeds(experiment, study, scale)
        provenance = {
            "command": f"retro reproduce {name} --scale {scale.name} --out {folder.name}{given}",
            "config": to_dict(scale),
            "fingerprints": dict(study.used),
        }
        result = Result(
            name,
            experiment.title,
            experiment.paper,
            findings.tables,
            findings.figures,
            findings.claims,
            provenance,
        )
        # Saved at once: a later experiment that fails costs only itself.
        result.save(folder / "reproduce")
        results.append(result)
    words = ["retro", "reproduce", *(names or ["all"]), "--scale", scale.name, "--out", str(folder), *more]
    write_report(folder, scale, Made(shlex.join(words), corpus_words(study.work)))
    return results


def _is_changed(scale: Scale) -> bool:
    """Whether the scoreboard scores another number of documents than the scale of that name."""
    known = SCALES.get(scale.name)
    return known is not None and known().compared_documents != scale.compared_documents


def finished(folder: Path) -> list[Result]:
    """All results in a folder, in the order of the experiments."""
    paths = {name: folder / "reproduce" / f"{name}.json" for name in EXPERIMENTS}
    return [Result.load(path) for path in paths.values() if path.exists()]


def write_report(folder: Path, scale: Scale, made: Made | None = None) -> Path:
    path = folder / "reproduce" / "report.html"
    with atomic_write(path) as file:
        file.write(render(finished(folder), scale.name, made).encode())
    return path
