"""What every tokenizer does: any UTF-8 text comes back byte for byte.

Tokens are byte strings and decoding joins them. So the length in bytes of any run of tokens is exact, and a
character that is split across tokens is no special case. How a text is cut is up to the subclasses in
`sentencepiece.py` and `huggingface.py`.
"""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from retro.errors import ArtifactError
from retro.stages.hints import with_paths
from retro.stages.stage import open_artifact

COMMAND = "retro ingest SOURCE --out WORK"


class Tokenizer(ABC):
    """Text to token ids and back."""

    def __init__(self, token_bytes: Sequence[bytes], pad_id: int, end_id: int, fingerprint: str) -> None:
        self.token_bytes = token_bytes
        self.pad_id = pad_id
        """Padding; no text is ever encoded with it."""
        self.end_id = end_id
        """Closes a document; no text is ever encoded with it."""
        self.fingerprint = fingerprint
        self.vocab_size = len(token_bytes)
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)
        """The smallest type that holds every token."""
        self.token_lengths = np.array([len(token) for token in token_bytes], dtype=np.int64)
        """Bytes of every token; padding and the end of a document have none."""

    @abstractmethod
    def encode(self, text: str) -> list[int]: ...

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        return b"".join(map(self.token_bytes.__getitem__, tokens))

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of the tokens; a character that is cut off at either end becomes U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")

    def pieces(self, tokens: Iterable[int]) -> list[str]:
        """A text for each token; joined, they are the text of all.

        A character that spans several tokens belongs to the last of them.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode(self.token_bytes[token]) for token in tokens]
        if texts:
            # A character that the last token cuts off is still in the decoder.
            texts[-1] += decoder.decode(b"", final=True)
        return texts

    def num_bytes(self, tokens: Sequence[int] | np.ndarray) -> int:
        return int(self.token_lengths[np.asarray(tokens, dtype=np.int64)].sum())

    def expect(self, fingerprint: str, what: str, command: str) -> None:
        """Refuse something that was made with another tokenizer."""
        if fingerprint != self.fingerprint:
            raise ArtifactError(
                f"{what} was made with tokenizer {fingerprint}; expected {self.fingerprint}; run: {command}"
            )

    @staticmethod
    def open(path: str | Path) -> "Tokenizer":
        """The tokenizer of a finished folder, of whichever kind."""
        artifact = open_artifact(Path(path), "tokenizer", COMMAND)
        # Small files that every token depends on, and whose libraries do not survive all that may be in them.
        artifact.expect_whole(*artifact.manifest["files"])
        for model_file, read in KINDS.items():
            if artifact.file(model_file).exists():
                return read(artifact.path)
        raise ArtifactError(
            f"{path} holds no tokenizer; expected one of {', '.join(KINDS)}; "
            f"remove it and run: {with_paths(COMMAND, Path(path))}"
        )


KINDS: dict[str, Callable[[Path], Tokenizer]] = {}
"""How a tokenizer is read from its folder, by the file that tells its kind; the package fills it."""
