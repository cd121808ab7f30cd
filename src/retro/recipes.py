"""Named runs.

Each is a function that returns a config; the numbers of the paper's are from its Table 2 and appendix C.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from retro.config import (
    CorpusConfig,
    DatastoreConfig,
    EncoderConfig,
    EvaluationConfig,
    ModelConfig,
    RetrievalConfig,
    RunConfig,
    TrainingConfig,
)
from retro.config.as_json import from_dict
from retro.config.fit import FitConfig
from retro.errors import ConfigError

DEMO_CORPUS = "licences"
"""What the demo from scratch reads."""
DEMO_MEMORY = ("django-docs-3.2", "django-docs-4.2")
"""What the demo's datastore holds besides the text that is fitted to: last years' editions of it."""
FILE = "recipe.json"
"""The recipe of a workspace that `retro study` planned."""
RECORD = "study.json"
"""What that recipe was chosen by. Only where it is beside it is a `recipe.json` ours."""
PAPER_TOKENS = 419_430_400_000
"""Tokens that every model of the paper's Table 2 was trained on."""
ABLATION_TOKENS = 157_000_000_000
"""Tokens of the paper's shorter schedule, for the ablations."""
FIT_SEQUENCES = 6_000_000
"""Sequences that the paper RETROfits with."""


def corpus_for(recipe: RunConfig, sources: Sequence[str]) -> CorpusConfig:
    """A recipe's settings for these sources; its limit to a document's length is for its own text alone."""
    own = recipe.corpus.sources or (DEMO_CORPUS,)
    if set(sources) <= set(own):
        return recipe.corpus
    return replace(recipe.corpus, max_document_bytes=0)


def tiny() -> RunConfig:
    """The demo from scratch: 1,750 licence texts, about a million parameters, minutes on two cores."""
    encoder = EncoderConfig(d_model=128, num_layers=1, num_heads=4, head_dim=32, ffw_dim=256)
    model = ModelConfig(
        vocab_size=2048,
        d_model=128,
        num_layers=4,
        num_heads=4,
        head_dim=32,
        ffw_dim=512,
        retrieval=RetrievalConfig(
            cross_attention_layers=(2, 4), encoder=encoder, share_embeddings=True, copying_start=True
        ),
    )
    return RunConfig(
        name="tiny",
        model=model,
        corpus=CorpusConfig(
            vocab_size=2048, valid_fraction=0.04, test_fraction=0.06, max_document_bytes=10_000
        ),
        datastore=DatastoreConfig(num_neighbours=20),
        training=TrainingConfig(
            num_steps=300,
            learning_rate=3e-3,
            min_learning_rate=1.5e-4,
            warmup_steps=30,
            validate_every=25,
            checkpoint_every=25,
            precision="float32",  # the same numbers on machines with and without bfloat16
        ),
        evaluation=EvaluationConfig(window=512, stride=256, num_neighbours=(1, 2, 4, 10)),
    )


def tiny_leave_out() -> RunConfig:
    """The same, but a fifth of the chunks of every step read no neighbours, which the paper's all do.

    So it learns to do without as well: with retrieval off it is as good as the baseline, and `tiny` is worse.
    """
    run = tiny()
    return replace(run, name="tiny-leave-out", training=replace(run.training, leave_out=0.2))


def tiny_bm25() -> RunConfig:
    """The same with the neighbours that BM25 finds by words, where the paper has a BERT find them by meaning.

    A small model copies what it reads: on text that repeats itself it needs 5 % fewer bits so, and nothing is
    embedded but by a table.
    """
    run = tiny()
    return replace(run, name="tiny-bm25", datastore=replace(run.datastore, embedder="static", index="bm25"))


MASSIVE_TEXT_MINI = {
    "reviews": 0.46,
    "bundestag": 0.03,
    "congreso": 0.03,
    "tweede-kamer": 0.03,
    "sotu": 0.15,
    "kjv": 0.05,
    "asv": 0.05,
    "news": 0.10,
    "wikipedia": 0.05,
    "stdlib": 0.05,
}
"""The paper's Table 1 (web 55, books 25, news 10, Wikipedia 5, code 5 %) by the sources of the catalogue
that stand for them. The web speaks several languages there; here three parliaments do."""


def massive_text_mini() -> RunConfig:
    """MassiveText in miniature: ten corpora of the catalogue, sampled with the paper's weights."""
    encoder = EncoderConfig(d_model=256, num_layers=1, num_heads=4, head_dim=64, ffw_dim=512)
    model = ModelConfig(
        vocab_size=8192,
        d_model=256,
        num_layers=6,
        num_heads=4,
        head_dim=64,
        ffw_dim=1024,
        retrieval=RetrievalConfig(
            cross_attention_layers=(3, 6),
            encoder=encoder,
            share_embeddings=True,  # a narrower encoder with its own copies far worse at the start
            copying_start=True,
        ),
    )
    return RunConfig(
        name="massive-text-mini",
        model=model,
        corpus=CorpusConfig(
            sources=(
                *("reviews", "bundestag", "congreso", "tweede-kamer"),
                *("sotu", "kjv", "asv", "news", "enwik8", "stdlib"),
            ),
            vocab_size=8192,
            tokenizer_weights=dict(MASSIVE_TEXT_MINI),
            valid_fraction=0.01,
            test_fraction=0.01,
        ),
        training=TrainingConfig(
            num_steps=2000,
            learning_rate=2e-3,
            min_learning_rate=1e-4,
            warmup_steps=100,
            mixture=dict(MASSIVE_TEXT_MINI),
        ),
        evaluation=EvaluationConfig(window=1024, stride=512),
    )


def _paper(
    name: str,
    d_model: int,
    num_heads: int,
    head_dim: int,
    num_layers: int,
    retrieval: bool = True,
    fit: bool = False,
    num_tokens: int = PAPER_TOKENS,
) -> RunConfig:
    """P is every third layer from 6 and P_enc is (1,); AdamW warms up from 1e-7 and ends at a tenth of its
    rate."""
    model = ModelConfig(
        d_model=d_model,
        num_layers=num_layers,
        num_heads=num_heads,
        head_dim=head_dim,
        ffw_dim=4 * d_model,
        retrieval=RetrievalConfig() if retrieval else None,
    )
    largest = d_model == 4096
    batch_size, rate = 1024 if largest and not fit else 256, 1e-4 if largest else 2e-4
    training = TrainingConfig(
        seq_len=2048,
        batch_size=batch_size,
        num_steps=FIT_SEQUENCES // batch_size if fit else num_tokens // (2048 * batch_size),
        learning_rate=rate,
        min_learning_rate=0.1 * rate,
        warmup_steps=750,
        weight_decay=0.1,
    )
    return RunConfig(name=name, model=model, corpus=CorpusConfig(vocab_size=128_000), training=training)


def _wikitext103(name: str, retrieval: bool) -> RunConfig:
    encoder = EncoderConfig(d_model=1024, ffw_dim=4096)
    model = ModelConfig(
        d_model=1024,
        num_layers=18,
        num_heads=16,
        head_dim=64,
        ffw_dim=4096,
        retrieval=RetrievalConfig(encoder=encoder, share_embeddings=True) if retrieval else None,
        dropout=0.25,
    )
    training = TrainingConfig(
        seq_len=3072,
        batch_size=128,
        num_steps=100_000,
        learning_rate=2.5e-4,
        min_learning_rate=2e-5,
        warmup_steps=4000,
        weight_decay=0.0,
        checkpoint_every=1000,
        validate_every=1000,
        final="best",
    )
    evaluation = EvaluationConfig(window=3072, num_neighbours=(10,)).with_overlap(0.875, chunk_len=64)
    return RunConfig(
        name=name,
        model=model,
        corpus=CorpusConfig(vocab_size=128_000),
        training=training,
        evaluation=evaluation,
    )


def wikitext103() -> RunConfig:
    """The Wikitext103 experiment: 18 layers as in the appendix's table (the text says 24), embeddings
    shared, Adam without decay.

    The paper takes the checkpoint with the lowest validation perplexity, and RETROfits that of the baseline
    with the same schedule: `retro train --recipe baseline-wikitext103`, then `retro fit --recipe
    wikitext103`.
    """
    return _wikitext103("wikitext103", retrieval=True)


def baseline_wikitext103() -> RunConfig:
    """The baseline of the Wikitext103 experiment."""
    return _wikitext103("baseline-wikitext103", retrieval=False)


def pretrained(reading: str = FitConfig.reading) -> RunConfig:
    """RETROfitting a pretrained model: few weights are new, so they take few tokens and a high rate.

    The paper's cross-attention and encoder are millions, which such a rate would ruin.
    """
    training = TrainingConfig(
        seq_len=512,
        batch_size=1,
        num_steps=60,
        num_neighbours=2,
        learning_rate=3e-2,
        min_learning_rate=3e-3,
        warmup_start=3e-3,
        warmup_steps=5,
        weight_decay=0.0,
        validate_every=20,
        validate_batches=8,
        validate_first=True,
        checkpoint_every=20,
        final="best",
    )
    if reading == "cross-attention":
        training = replace(
            training,
            num_steps=300,
            learning_rate=1e-3,
            min_learning_rate=1e-4,
            warmup_start=1e-4,
            warmup_steps=30,
            validate_every=50,
        )
    evaluation = EvaluationConfig(window=1024, stride=512, batch_size=4)
    return replace(tiny(), name="pretrained", training=training, evaluation=evaluation)


def pretrained_further() -> RunConfig:
    """Going on from a model that was fitted before, at the rate that the package's own was fitted with."""
    run = pretrained()
    return replace(
        run,
        name="pretrained-further",
        training=replace(run.training, learning_rate=1e-2, min_learning_rate=1e-3, warmup_start=1e-3),
    )


def demo() -> RunConfig:
    """The demo: SmolLM2-135M with the package's additions, fitted further to the documentation of Django 5.2,
    with 3.2's and 4.2's in its memory.

    Its steps are few: two cores have some minutes for them.
    """
    run = pretrained_further()
    return replace(
        run,
        name="demo",
        corpus=CorpusConfig(
            sources=("django-docs-5.2",), tokenizer="smollm2", valid_fraction=0.05, test_fraction=0.05
        ),
        # Three editions are few enough to be searched exactly, the same on every machine.
        datastore=DatastoreConfig(embedder="static", num_neighbours=10, exact_below=100_000),
        training=replace(
            run.training, num_steps=30, validate_every=15, validate_batches=2, checkpoint_every=5
        ),
        evaluation=EvaluationConfig(window=512, stride=512, num_neighbours=(2,)),
        start="smollm2-135m-retro",
    )


def questions_tiny() -> RunConfig:
    """Fine-tuning on questions for a small model: the paper's way, at rates and in steps that move a model
    of some million parameters."""
    training = TrainingConfig(
        seq_len=256,
        batch_size=16,
        num_steps=1000,
        num_neighbours=5,
        learning_rate=1e-3,
        min_learning_rate=1e-4,
        warmup_steps=50,
        validate_every=100,
        checkpoint_every=100,
        final="best",
        precision="float32",
    )
    return replace(tiny(), name="questions-tiny", training=training)


def questions_7b() -> RunConfig:
    """The paper's fine-tuning of its largest model on Natural Questions, with the top 20 passages of DPR."""
    training = TrainingConfig(
        seq_len=256,
        batch_size=128,
        num_steps=25_000,
        num_neighbours=20,
        learning_rate=1e-6,
        min_learning_rate=1e-7,
        warmup_steps=750,
    )
    return replace(get("paper-7.5b"), name="questions-7.5b", training=training)


_SIZES = {
    ("paper-172m", "baseline-132m"): (896, 16, 64, 12),
    ("paper-425m", "baseline-368m"): (1536, 12, 128, 12),
    ("paper-1.5b", "baseline-1.3b"): (2048, 16, 128, 24),
    ("paper-7.5b", "baseline-7b"): (4096, 32, 128, 32),
}

RECIPES: dict[str, Callable[[], RunConfig]] = {
    "tiny": tiny,
    "tiny-leave-out": tiny_leave_out,
    "tiny-bm25": tiny_bm25,
    "massive-text-mini": massive_text_mini,
    "wikitext103": wikitext103,
    "baseline-wikitext103": baseline_wikitext103,
    **{
        name: partial(_paper, name, *size, retrieval=retrieval)
        for names, size in _SIZES.items()
        for name, retrieval in zip(names, (True, False), strict=True)
    },
    **{
        names[0].replace("paper", "retrofit"): partial(
            _paper, names[0].replace("paper", "retrofit"), *size, fit=True
        )
        for names, size in _SIZES.items()
    },
    "pretrained": pretrained,
    "pretrained-further": pretrained_further,
    "demo": demo,
    "questions-tiny": questions_tiny,
    "questions-7.5b": questions_7b,
    "ablation-172m": partial(_paper, "ablation-172m", 896, 16, 64, 12, num_tokens=ABLATION_TOKENS),
}


def get(name: str) -> RunConfig:
    """The config of a named run, or of a JSON file."""
    if name.endswith(".json"):
        return read(Path(name))
    try:
        return RECIPES[name]()
    except KeyError:
        raise ConfigError(
            f"there is no recipe {name!r}; expected one of {', '.join(RECIPES)}, or a file NAME.json"
        ) from None


def read(path: Path) -> RunConfig:
    """The recipe in a JSON file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise ConfigError(f"{path} cannot be read; expected a recipe as JSON") from None
    except ValueError:
        raise ConfigError(f"{path} is not JSON; expected a recipe as retro study writes it") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no object; expected a recipe as retro study writes it")
    return from_dict(RunConfig, values, str(path))


def of_workspace(folder: Path) -> RunConfig | None:
    """The recipe that a study left in its workspace; none elsewhere."""
    return read(folder / FILE) if (folder / RECORD).exists() and (folder / FILE).exists() else None


def baseline_of(run: RunConfig) -> RunConfig:
    """The same run without retrieval: same decoder, same tokens, same steps."""
    return replace(run, name=f"{run.name}-baseline", model=run.model.baseline())
