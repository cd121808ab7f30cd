"""How large a reproduction is: minutes on a laptop, an afternoon, or the paper's own sizes."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from retro import recipes
from retro.config import EncoderConfig, EvaluationConfig, ModelConfig, RunConfig
from retro.errors import ConfigError
from retro.reproduce.variants import CLAIMED


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Everything that the experiments need to know about one scale."""

    name: str
    run: RunConfig
    sources: tuple[str, ...] = ()
    """Corpora of the catalogue; empty if users must name their own."""
    fit_steps: int
    """Steps of the RETROfit."""
    fractions: tuple[float, ...] = (0.01, 0.1, 0.3, 1.0)
    """Parts of the datastore that are searched."""
    neighbours: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100)
    """Values of k at evaluation."""
    sizes: tuple[tuple[str, ModelConfig], ...]
    """RETRO models by name, smallest first; each has its baseline."""
    ablation: RunConfig
    variants: tuple[str, ...] = ()
    """Rows of the ablation table that are trained; empty: all."""
    sets: tuple[str, ...] = ()
    """Evaluation sets of the catalogue, besides LAMBADA."""
    wikitext: str = "wikitext-2"
    """The corpus of the Wikitext103 table, which has its own splits."""
    knn_part: float = 1.0
    """Part of the text that kNN-LM's memory and RETRO's hold where they are compared."""
    with_pointer: bool = False
    """Whether a RETROfit with the pointer stands beside them."""
    wikipedia_fraction: float = 1.0
    """Part of the Wikipedia dump whose neighbours are looked up in the link graph."""
    more_seeds: tuple[int, ...] = ()
    """Seeds besides the run's own, with which its models are trained once more."""
    compared_documents: int = 24
    """Documents whose beginnings the scoreboard scores."""
    memory: tuple[str, ...] = ()
    """Corpora that only the datastore holds, besides the training text."""
    experiments: tuple[str, ...] = ()
    """Those that this scale can be used for; empty: all."""


def scaled(model: ModelConfig, factor: float) -> ModelConfig:
    """The same depth, with a fraction of the heads and of every width."""

    def part(size: int) -> int:
        return max(1, int(size * factor))

    assert model.retrieval is not None
    encoder = model.retrieval.encoder
    # `head_dim` stays: fewer heads of the same size.
    smaller = EncoderConfig(
        d_model=part(encoder.d_model),
        num_layers=encoder.num_layers,
        num_heads=part(encoder.num_heads),
        head_dim=encoder.head_dim,
        ffw_dim=part(encoder.ffw_dim),
        cross_attention_layers=encoder.cross_attention_layers,
    )
    return replace(
        model,
        d_model=part(model.d_model),
        num_heads=part(model.num_heads),
        ffw_dim=part(model.ffw_dim),
        retrieval=replace(model.retrieval, encoder=smaller),
    )


def _with_steps(run: RunConfig, num_steps: int, warmup_steps: int) -> RunConfig:
    # Ten validations and checkpoints, however short the run.
    every = max(1, num_steps // 10)
    training = replace(
        run.training,
        num_steps=num_steps,
        warmup_steps=warmup_steps,
        validate_every=every,
        checkpoint_every=every,
    )
    return replace(run, training=training)


def _with_precision(run: RunConfig, precision: str) -> RunConfig:
    return replace(run, training=replace(run.training, precision=precision))


def tiny() -> Scale:
    """The demo's licence texts and model: an hour on two cores for all experiments, minutes for one."""
    run = recipes.tiny()
    return Scale(
        name="tiny",
        run=run,
        sources=("licences",),
        fit_steps=100,
        neighbours=(1, 2, 5, 10, 20, 50),
        sizes=(("half", scaled(run.model, 0.5)), ("whole", run.model)),
        ablation=_with_precision(_with_steps(run, 50, 10), "auto"),
        wikipedia_fraction=0.15,
    )


def small() -> Scale:
    """A fifth of the miniature MassiveText and a model of six layers: some hours on one core."""
    run = _with_steps(recipes.massive_text_mini(), 500, 50)
    run = replace(
        run,
        # Half as wide: at the recipe's rate it keeps what it starts with, and a step takes half the time.
        model=scaled(run.model, 0.5),
        corpus=replace(run.corpus, sample_fraction=0.2, valid_fraction=0.02, test_fraction=0.03),
        datastore=replace(run.datastore, embedder="static"),
        evaluation=EvaluationConfig(window=1024, stride=768, num_neighbours=(2,), precision="auto"),
    )
    return Scale(
        name="small",
        run=run,
        sources=run.corpus.sources,
        fit_steps=160,
        neighbours=(1, 2, 5, 10),
        sizes=(("half", scaled(run.model, 0.5)), ("whole", run.model)),
        ablation=_with_steps(run, 150, 30),
        variants=(*CLAIMED, "no-retrieval"),
        more_seeds=(1,),
        sets=("wikitext-2@test", "wikipedia-2016"),
        knn_part=0.2,
        with_pointer=True,
        wikipedia_fraction=0.3,
    )


def paper() -> Scale:
    """The paper's models and schedules. Its data is not public: name your own with --sources."""
    run = recipes.get("paper-172m")
    evaluation = replace(run.evaluation, num_neighbours=(1, 2, 4, 10))
    return Scale(
        name="paper",
        run=replace(run, evaluation=evaluation),
        fit_steps=recipes.get("retrofit-172m").training.num_steps,
        sizes=tuple((name, recipes.get(f"paper-{name}").model) for name in ("172m", "425m", "1.5b", "7.5b")),
        ablation=replace(recipes.get("ablation-172m"), evaluation=evaluation),
        sets=("wikitext-2@test", "wikipedia-2016"),
    )


def smollm2() -> Scale:
    """The demo's: SmolLM2-135M, fitted to a manual, beside what else can be done with the same base; and the
    claims that a base which was trained elsewhere can decide."""
    run = recipes.demo()
    run = replace(run, evaluation=replace(run.evaluation, precision="auto"))
    return Scale(
        name="smollm2",
        run=run,
        sources=run.corpus.sources,
        fit_steps=run.training.num_steps,
        neighbours=(1, 2, 5, 10),
        sizes=(),
        ablation=run,
        compared_documents=12,
        memory=recipes.DEMO_MEMORY,
        experiments=(
            *("table-scoreboard", "table-retrieval", "figure-leakage", "figure-decontamination"),
            *("figure-datastore-size", "figure-neighbours", "table-new-facts"),
        ),
    )


SCALES: dict[str, Callable[[], Scale]] = {"tiny": tiny, "small": small, "paper": paper, "smollm2": smollm2}


def get(name: str) -> Scale:
    """A scale by its name."""
    if name not in SCALES:
        raise ConfigError(f"there is no scale {name!r}; expected one of {', '.join(SCALES)}")
    return SCALES[name]()
