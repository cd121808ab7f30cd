"""The tokenizer of a corpus: the one that the config names, or one that is trained on the training documents.

Each source gives as much text to the training as its weight says.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from retro.config import CorpusConfig
from retro.corpus.documents import Document, uniform
from retro.corpus.text import TextStore
from retro.corpus.tokenizers import Tokenizer, copy_tokenizer, train_tokenizer
from retro.corpus.tokenizers.tokenizer import COMMAND
from retro.errors import ConfigError
from retro.stages.files import make_fingerprint
from retro.stages.stage import MANIFEST, Artifact, Stage, open_artifact, recorded_inputs, run_stage

CARRIED = "tokenizer"
"""The folder in which runs and workspaces have their tokenizer."""


def make_tokenizer(text: TextStore, path: Path, config: CorpusConfig) -> Tokenizer:
    """Copy the tokenizer that the config names, or train one on a sample of the training documents alone."""
    if config.tokenizer:
        return take_tokenizer(config.tokenizer, path)
    sample = sample_text(text, config.tokenizer_sample_bytes, config.tokenizer_weights)
    # A tokenizer that is there stays, whatever became of the text since: its tokens are in use.
    learned_from = recorded_inputs(path).get("text") if path.exists() else None
    inputs = {
        "text": learned_from or text.fingerprint,
        "weights": make_fingerprint(config.tokenizer_weights, config.tokenizer_sample_bytes),
    }
    texts = (document.text for document in sample)
    train_tokenizer(texts, path, config.vocab_size, config.tokenizer_model, inputs)
    return Tokenizer.open(path)


def take_tokenizer(name: str, path: Path) -> Tokenizer:
    """Copy the tokenizer that is named, for which no text is needed."""
    # A run, or another workspace, carries its tokenizer as a finished folder of ours, of either kind; it may
    # be named, or what it lies in. A base that was fetched has a manifest as well, and a model's config.
    folder = Path(name)
    if (folder / CARRIED / MANIFEST).exists():
        folder = folder / CARRIED
    is_ours = (folder / MANIFEST).exists() and not (folder / "config.json").exists()
    if is_ours:
        copy_finished(str(folder), path)
    else:
        copy_tokenizer(name, path)
    return Tokenizer.open(path)


def copy_finished(name: str, path: Path) -> Artifact:
    """Take the tokenizer of a finished folder of ours, as a run carries it."""
    folder = Path(name)
    tokenizer = Tokenizer.open(folder)
    artifact = open_artifact(folder, "tokenizer", COMMAND)

    def work(stage: Stage) -> None:
        for file_name in artifact.manifest["files"]:
            with stage.write(file_name) as file:
                file.write(artifact.file(file_name).read_bytes())
        stage.counts["tokens"] = tokenizer.vocab_size

    inputs = {"tokenizer": tokenizer.fingerprint}
    return run_stage(path, "tokenizer", {"kind": "copied"}, inputs, work, COMMAND)


def sample_text(
    text: TextStore, max_bytes: int, weights: Mapping[str, float] | None = None
) -> Iterator[Document]:
    """Training documents of about `max_bytes` in all, or as many as there are, chosen by their ids."""
    sizes = text.train_bytes()
    wanted = bytes_by_source(sizes, max_bytes, weights or {})
    shares = {source: num_bytes / sizes[source] for source, num_bytes in wanted.items()}
    for document in text.documents():
        if document.split != "train":
            continue
        # The draw depends on the document alone: another order or another shard size gives the same sample.
        if uniform("tokenizer", document.source, document.id) < shares[document.source]:
            yield document


def bytes_by_source(
    sizes: Mapping[str, int], max_bytes: int, weights: Mapping[str, float]
) -> dict[str, float]:
    """How many bytes each source gives; without weights, in proportion to its size.

    A source that has less than its weight asks for gives all it has, and the others share the rest.
    """
    if not weights:
        weights = sizes
    if unknown := sorted(set(weights) - set(sizes)):
        raise ConfigError(
            f"tokenizer_weights name {unknown}; expected sources of the corpus: {sorted(sizes)}"
        )
    if any(weight < 0.0 for weight in weights.values()) or not sum(weights.values()) > 0.0:
        raise ConfigError(f"tokenizer_weights are {dict(weights)}; expected none below 0 and one above")
    given = dict.fromkeys(sizes, 0.0)
    left = float(max_bytes)
    open_sources = {source for source, weight in weights.items() if weight > 0.0}
    while open_sources:
        total = sum(weights[source] for source in open_sources)
        # Sources that have no more than their share give all of it, which leaves more for the others.
        full = {source for source in open_sources if sizes[source] <= left * weights[source] / total}
        if not full:
            # Every source that is left has enough, so the rest is divided by weight and that is the end.
            for source in open_sources:
                given[source] = left * weights[source] / total
            break
        for source in full:
            given[source] = sizes[source]
        left -= sum(given[source] for source in full)
        open_sources -= full
    return given
