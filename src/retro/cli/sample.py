"""retro sample"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from retro.cli.console import CONSOLE, file_for, parse, read_argument, read_text, warn
from retro.cli.pages import made, source_files
from retro.errors import ConfigError
from retro.generation.request import Choice, Request, Retrieval
from retro.stages.files import atomic_write
from retro.wording import counted

if TYPE_CHECKING:
    from retro.generation.sampler import Sampler
    from retro.generation.sequence import Sample
    from retro.pages.shell import Made
    from retro.pages.sources import SourceFiles
    from retro.workspace import OpenRun

# What ended a sample, in words.
ENDS = {"length": "its length", "end": "the document's end", "stop": "a stop text", None: "nothing"}
MOST_SAMPLES = 10_000
CHOICE = Choice(temperature=0.7, top_p=0.9)
RETRIEVAL = Retrieval()
"""How a text is continued where no option says otherwise."""


@dataclass(frozen=True)
class Options:
    """Continue a text; every token is coloured by how long a run it shares with the neighbours."""

    place: Annotated[Path, tyro.conf.Positional]
    """The workspace, a run's own folder, or the name of a model that comes with retro."""
    prompt: Annotated[str, tyro.conf.Positional] = ""
    """The text to continue; - reads standard input."""
    file: Path | None = None
    """A file with the text to continue."""
    name: str = "retro"
    """The run, by its name in the workspace or by its folder."""
    datastore: Path | None = None
    """A datastore to retrieve from, or a workspace that has one, in place of the workspace's
    own."""
    max_tokens: int = 128
    """How many tokens to add at most."""
    samples: int = 1
    """How many continuations."""
    seed: int = 0
    """Another seed gives other samples."""
    # The fields of these two are options of their own, with the names and the words they have
    # there.
    choice: Annotated[Choice, tyro.conf.arg(name="")] = CHOICE
    retrieval: Annotated[Retrieval, tyro.conf.arg(name="")] = RETRIEVAL
    on: bool = False
    """With retrieval, as a RETRO does anyway; an error if the run cannot."""
    off: bool = False
    """Without retrieval."""
    both: bool = False
    """With retrieval off and on, one after the other."""
    window: int = 0
    """Attend only to this many last tokens, an approximation for very long samples; 0: to
    all."""
    log_probs: bool = False
    """Give the log-probability of every token, with --json."""
    json: bool = False
    """One line of JSON for each sample."""
    html: Path | None = None
    """Write a page that shows the samples beside their neighbours."""

    @property
    def chooses_neighbours(self) -> bool:
        """Whether an option was given that only makes sense with retrieval."""
        return self.retrieval != RETRIEVAL or self.datastore is not None


def check(options: Options) -> None:
    """Refuse options that contradict each other."""
    # Checked after parsing, because the parser would print a whole page about an error.
    if options.on + options.off + options.both > 1:
        raise ConfigError("--on, --off and --both exclude each other; expected one of them")
    if options.prompt and options.file:
        raise ConfigError("a prompt and --file were given; expected one of them")
    if not options.prompt and not options.file:
        raise ConfigError("there is no prompt; expected a text, - for standard input, or --file")
    if options.off and options.chooses_neighbours:
        raise ConfigError(
            "--off retrieves nothing; expected no --datastore, --num-neighbours, --sources, --exclude, "
            "--every or --passages"
        )
    if options.retrieval.passages and (options.retrieval.sources or options.retrieval.exclude):
        raise ConfigError("--passages are not searched; expected no --sources or --exclude")
    if options.log_probs and not options.json:
        raise ConfigError("--log-probs are written as JSON only; expected --json with it")
    if options.samples > MOST_SAMPLES:
        raise ConfigError(
            f"samples is {options.samples}; expected at most {MOST_SAMPLES}, as they are made together"
        )
    if options.samples > 1 and options.choice.temperature == 0:
        raise ConfigError("at --temperature 0 all samples are the same; expected 1 sample")


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "sample")
    check(options)
    request = Request(
        prompts=[read_text(options.file) if options.file else read_argument(options.prompt)],
        max_tokens=options.max_tokens,
        choice=options.choice,
        seed=options.seed,
        samples=options.samples,
        log_probs=options.log_probs,
    )
    # Checked before the model is loaded.
    page = file_for(options.html, "--html") if options.html else None
    from retro.workspace import open_run

    opened = open_run(options.place, options.name, options.datastore)
    sampler = _sampler(opened, options)
    on = options.retrieval if opened.model.facts.retrieves and not options.off else False
    # Off before on, with the same request and seed, so that the two can be compared.
    modes = (False, on) if options.both else (on,)
    samples = [sampler.generate_all(request, retrieval=mode)[0] for mode in modes]
    if options.json:
        _print_records(samples, sampler, opened.path.name, options.seed)
    elif not page:
        _show(samples, sampler)
    if page:
        origin = made("sample", arguments, opened)
        note = f"run {opened.path.name}, {_settings(options)}"
        _write_page(page, samples, sampler, note, origin, source_files(opened))
        if not options.json:
            CONSOLE.print(f"page  {page.resolve()}", soft_wrap=True)
    warn(*_notes(samples[-1]))


def _sampler(opened: "OpenRun", options: Options) -> "Sampler":
    """A sampler. The datastore is opened only if it will be searched."""
    from retro.generation.sampler import Sampler
    from retro.retrieval.retriever import Retriever

    retrieves = opened.model.facts.retrieves
    if (options.on or options.both or options.chooses_neighbours) and not retrieves:
        raise ConfigError(
            f"run {opened.path.name!r} has no cross-attention; "
            "expected a RETRO, or none of the options of retrieval"
        )
    # Given passages are read as they are, without a search.
    searches = retrieves and not options.off and not options.retrieval.passages
    retriever = None
    if retrieves and not options.off:
        opened.model.quicken()
    if searches:
        retriever = Retriever(opened.datastore())
        # Now, since a short text may never be searched for.
        opened.datastore().expect_known(options.retrieval.sources, options.retrieval.exclude)
    return Sampler(opened.model, retriever, opened.tokenizer, options.window)


def _notes(samples: Sequence["Sample"]) -> list[str]:
    """What a text shorter than a chunk means for retrieval, which begins when the first chunk is complete."""
    longest = max(samples, key=lambda sample: len(sample.tokens))
    chunk_len, written = longest.chunk_len, len(longest.tokens)
    missing = chunk_len - longest.prompt_len
    if not longest.retrieval or (missing <= 0 and any(longest.neighbours)):
        return []
    if written < chunk_len:
        return [
            f"nothing was retrieved: the first chunk has no neighbours and ends after {chunk_len} tokens, "
            f"and prompt and sample have {written}; {chunk_len - written} are missing; "
            "give a longer prompt, or more --max-tokens"
        ]
    if not any(longest.neighbours):
        chunks = written // chunk_len
        return [
            f"nothing was retrieved for {counted(chunks, 'complete chunk')}; "
            f"expected an --every of at most {chunks}"
        ]
    first = "first new token was" if missing == 1 else f"first {missing} new tokens were"
    return [
        f"the prompt has {counted(longest.prompt_len, 'token')}, {missing} fewer than a chunk: "
        f"the {first} written without neighbours"
    ]


def _print_records(modes: Sequence[Sequence["Sample"]], sampler: "Sampler", run: str, seed: int) -> None:
    from retro.pages.samples import sample_record

    for samples in modes:
        for number, sample in enumerate(samples):
            record = {"run": run, "seed": seed, "number": number, **sample_record(sample, sampler.tokenizer)}
            print(json.dumps(record, ensure_ascii=False))


def _show(modes: Sequence[Sequence["Sample"]], sampler: "Sampler") -> None:
    from retro.pages.samples import colour_sample
    from retro.pages.terminal import render_sample

    for samples in modes:
        for number, sample in enumerate(samples, start=1):
            prefix = f"sample {number} · " if len(samples) > 1 else ""
            CONSOLE.print(render_sample(colour_sample(sample, sampler.tokenizer), prefix + _mode(sample)))


def _write_page(
    path: Path,
    modes: Sequence[Sequence["Sample"]],
    sampler: "Sampler",
    note: str,
    origin: "Made",
    files: "SourceFiles",
) -> None:
    from retro.pages.samples import Pair, colour_sample, samples_page

    pairs = []
    # Samples with the same number share a seed, so they are shown side by side.
    for number, samples in enumerate(zip(*modes, strict=True), start=1):
        coloured = {sample.retrieval: colour_sample(sample, sampler.tokenizer) for sample in samples}
        ends = "; ".join(f"{_mode(sample)}: ended by {ENDS[sample.finish]}" for sample in samples)
        pairs.append(Pair(f"Sample {number}", coloured.get(False, []), coloured.get(True, []), ends))
    note = f"{note}; the prompt is grey"
    page = samples_page("Samples beside their neighbours", note, pairs, origin, files)
    with atomic_write(path) as file:
        file.write(page.encode())


def _mode(sample: "Sample") -> str:
    return f"retrieval {'on' if sample.retrieval else 'off'}"


def _settings(options: Options) -> str:
    return f"seed {options.seed}, temperature {options.choice.temperature}, top-p {options.choice.top_p}"
