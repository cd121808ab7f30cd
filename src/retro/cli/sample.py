"""retro sample"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from retro.cli.console import CONSOLE, parse, read_argument, read_text
from retro.errors import ConfigError
from retro.stages.files import atomic_write

if TYPE_CHECKING:
    from retro.generation.sample import Sample
    from retro.generation.sampler import Sampler

ENDS = {"length": "its length", "end": "the document's end", "stop": "a stop text", None: "nothing"}


@dataclass(frozen=True)
class Options:
    """Continue a text; every token is coloured by how long a run it shares with the neighbours."""

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace."""
    prompt: Annotated[str, tyro.conf.Positional] = ""
    """The text to continue; - reads standard input."""
    file: Path | None = None
    """A file with the text to continue."""
    name: str = "retro"
    """The run."""
    datastore: Path | None = None
    """A datastore of the run's tokenizer, or a workspace that has one, in place of the workspace's own."""
    tokens: int = 128
    """How many tokens to add at most."""
    min_tokens: int = 0
    """How many tokens to add at least."""
    samples: int = 1
    """How many continuations."""
    temperature: float = 0.7
    """0 always takes the most probable token."""
    top_k: int = 0
    """Draw from that many most probable tokens; 0: from all."""
    top_p: float = 0.9
    """Draw from the fewest most probable tokens that hold this part of the mass."""
    repetition_penalty: float = 1.0
    """More than 1 makes tokens less likely that are there already."""
    stop: tuple[str, ...] = ()
    """Texts that end a sample."""
    seed: int = 0
    on: bool = False
    """With retrieval, as a RETRO does anyway; an error if the run cannot."""
    off: bool = False
    """Without retrieval."""
    both: bool = False
    """With retrieval off and on, one after the other."""
    neighbours: int = 2
    """Neighbours of each chunk."""
    every: int = 1
    """Retrieve at every so many chunks only; those between have no neighbours."""
    sources: tuple[str, ...] = ()
    """Retrieve documents of these sources only."""
    exclude: tuple[str, ...] = ()
    """Ids of documents that must not be retrieved."""
    passages: tuple[str, ...] = ()
    """Texts that every chunk gets as its neighbours, instead of retrieving."""
    window: int = 0
    """Attend to that many last tokens only, an approximation for very long samples; 0: to all."""
    log_probs: bool = False
    """Tell the log-probability of every token, with --json."""
    json: bool = False
    """One line of JSON a sample."""
    html: Path | None = None
    """Write a page that shows the samples beside their neighbours."""

    @property
    def wants_neighbours(self) -> bool:
        return bool(self.sources or self.exclude or self.passages or self.every != 1)


def check(options: Options) -> None:
    """Refuse options that contradict each other; once parsed, as the parser would print a page about them."""
    for wrong, message in (
        (
            options.on + options.off + options.both > 1,
            "--on, --off and --both exclude each other; expected one of them",
        ),
        (options.prompt and options.file, "a prompt and --file were given; expected one of them"),
        (
            not options.prompt and not options.file,
            "there is no prompt; expected a text, - for standard input, or --file",
        ),
        (
            options.off and options.wants_neighbours,
            "--off retrieves nothing; expected no --sources, --exclude, --every or --passages",
        ),
        (
            options.passages and (options.sources or options.exclude),
            "--passages are not searched; expected no --sources or --exclude",
        ),
        (
            options.log_probs and not options.json,
            "--log-probs are told in JSON only; expected --json with it",
        ),
        (
            options.samples > 1 and options.temperature == 0,
            "at --temperature 0 all samples are the same; expected 1 sample",
        ),
    ):
        if wrong:
            raise ConfigError(message)


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "sample")
    check(options)
    from retro.pages.sample_record import sample_record

    prompt = read_text(options.file) if options.file else read_argument(options.prompt)
    sampler = _sampler(options)
    modes = _sample(sampler, options, prompt)
    for samples in modes:
        for number, sample in enumerate(samples):
            if options.json:
                record = {
                    "run": options.name,
                    "seed": options.seed,
                    "number": number,
                    **sample_record(sample, sampler.tokenizer),
                }
                print(json.dumps(record, ensure_ascii=False))
            elif not options.html:
                _show(sample, sampler, f"sample {number + 1} · " if options.samples > 1 else "")
    if options.html:
        _write_page(options.html, modes, sampler, options)


def _sampler(options: Options) -> "Sampler":
    from retro.workspace import open_run

    opened = open_run(options.work, options.name, options.datastore)
    sampler = opened.sampler(options.neighbours, not options.off, options.passages, options.window)
    if (options.on or options.both or options.wants_neighbours) and not sampler.model.facts.retrieves:
        raise ConfigError(
            f"run {options.name!r} has no cross-attention; expected a RETRO, or none of the options of retrieval"
        )
    return sampler


def _sample(sampler: "Sampler", options: Options, prompt: str) -> list[list["Sample"]]:
    """The samples of each mode that was asked for."""
    from retro.generation.choice import Choice
    from retro.generation.search import Retrieval

    choice = Choice(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        repetition_penalty=options.repetition_penalty,
        min_tokens=options.min_tokens,
        stop=options.stop,
    )
    on: bool | Retrieval = False
    if sampler.retriever is not None:
        k = None if options.passages else options.neighbours
        on = Retrieval(
            num_neighbours=k, every=options.every, sources=options.sources, exclude=options.exclude
        )
    modes = (False, on) if options.both else (on,)
    return [
        sampler.generate_all(
            [prompt], options.tokens, choice, options.seed, retrieval, options.log_probs, options.samples
        )[0]
        for retrieval in modes
    ]


def _show(sample: "Sample", sampler: "Sampler", prefix: str) -> None:
    from retro.pages.sample_colours import colour_sample
    from retro.pages.terminal import render_sample

    title = f"{prefix}retrieval {'on' if sample.retrieval else 'off'}"
    CONSOLE.print(render_sample(colour_sample(sample, sampler.tokenizer), title))


def _write_page(
    path: Path, modes: Sequence[Sequence["Sample"]], sampler: "Sampler", options: Options
) -> None:
    from retro.pages.sample_colours import colour_sample
    from retro.pages.samples import Pair, samples_page

    pairs = []
    for number, samples in enumerate(zip(*modes, strict=True)):
        coloured = {sample.retrieval: colour_sample(sample, sampler.tokenizer) for sample in samples}
        ends = "; ".join(
            f"retrieval {'on' if sample.retrieval else 'off'}: ended by {ENDS[sample.finish]}"
            for sample in samples
        )
        pairs.append(Pair(f"Sample {number + 1}", coloured.get(False, []), coloured.get(True, []), ends))
    note = f"run {options.name}, seed {options.seed}, temperature {options.temperature}, top-p {options.top_p}; the prompt is grey"
    with atomic_write(path) as file:
        file.write(samples_page("Samples beside their neighbours", note, pairs).encode())
    if not options.json:
        CONSOLE.print(f"page  {path.resolve()}", soft_wrap=True)
