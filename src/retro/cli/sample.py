"""retro sample"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from retro.cli.console import CONSOLE, parse, read_argument


@dataclass(frozen=True)
class Options:
    """Continue a text; every token is coloured by how long a run it shares with the neighbours."""

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace."""
    prompt: Annotated[str, tyro.conf.Positional]
    """The text to continue; - reads standard input."""
    name: str = "retro"
    """The run."""
    tokens: int = 128
    """How many tokens to add at most."""
    temperature: float = 0.7
    """0 always takes the most probable token."""
    top_k: int = 0
    top_p: float = 0.9
    neighbours: int = 2
    """Neighbours of each chunk."""
    exclude: tuple[str, ...] = ()
    """Ids of documents that must not be retrieved."""
    seed: int = 0
    off: bool = False
    """Without retrieval."""
    both: bool = False
    """With retrieval off and on, one after the other."""


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "sample")
    from retro.sampling.choice import Choice
    from retro.sampling.colours import colour_sample
    from retro.sampling.terminal import render_sample
    from retro.workspace import Workspace

    sampler = Workspace(options.work).sampler(options.name, options.neighbours, options.exclude)
    choice = Choice(temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
    prompt = read_argument(options.prompt)
    for retrieval in (False, True) if options.both else (not options.off,):
        sample = sampler.generate(prompt, options.tokens, choice, options.seed, retrieval)
        title = "retrieval on" if retrieval and sampler.model.config.uses_retrieval else "retrieval off"
        CONSOLE.print(render_sample(colour_sample(sample, sampler.retriever.tokenizer), title))
