"""retro tokenizer"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from retro.cli.console import CONSOLE, parse, print_table, read_argument
from retro.wording import counted


@dataclass(frozen=True)
class Options:
    """Show how the workspace's tokenizer cuts a text, and its bytes a token on each source."""

    action: Annotated[Literal["inspect"], tyro.conf.Positional]
    work: Annotated[Path, tyro.conf.Positional]
    """The workspace that `retro ingest` made."""
    text: Annotated[str, tyro.conf.Positional] = ""
    """A text to cut; - reads standard input."""


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "tokenizer")
    from rich.text import Text

    from retro.corpus.folder import CorpusFolder

    work = CorpusFolder(options.work)
    tokenizer = work.tokenizer()
    CONSOLE.print(
        f"{work.tokenizer_path}: {tokenizer.vocab_size:,} tokens, fingerprint {tokenizer.fingerprint}",
        soft_wrap=True,
    )
    text = read_argument(options.text)
    if text:
        tokens = tokenizer.encode(text)
        shown = Text()
        for number, token in enumerate(tokens):
            # A token may end inside a character; its bytes are then shown as escapes.
            piece = tokenizer.token_bytes[token].decode("utf-8", "backslashreplace")
            piece = piece.replace("\n", "⏎\n").replace("\t", "⇥")
            # Two alternating colours make the borders between tokens visible.
            shown.append(piece, "black on #cfe0ee" if number % 2 else "black on #f4e3c3")
        CONSOLE.print(shown)
        per_token = tokenizer.num_bytes(tokens) / max(1, len(tokens))
        CONSOLE.print(
            f"{counted(len(tokens), 'token')}, {per_token:.2f} bytes a token: {tokens}", soft_wrap=True
        )
    rows = [
        [source, f"{counts['bytes'] / counts['tokens']:.3f}"]
        for source, counts in sorted(work.by_source().items())
        if counts["tokens"]
    ]
    print_table("bytes a token", ["source", "bytes a token"], rows)
