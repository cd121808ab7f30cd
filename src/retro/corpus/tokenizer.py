"""A SentencePiece tokenizer that loses nothing: every UTF-8 text comes back byte for byte.

Tokens are byte strings. Decoding joins them, so the length in bytes of any run of tokens is exact, and a character that is
split across tokens is no special case.
"""

import io
import json
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import sentencepiece

from retro.artifacts import Artifact, Stage, make_fingerprint, open_artifact, run_stage
from retro.errors import ArtifactError, DataError

MODEL_FILE = "tokenizer.model"
PAD_ID, UNKNOWN_ID, END_ID = 0, 1, 2
SPACE = "▁"
"""How SentencePiece writes a space; a real U+2581 in the text is encoded by its bytes."""


class Tokenizer:
    """Text to token ids and back."""

    def __init__(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocab_size: int = self._processor.vocab_size()
        self.pad_id, self.end_id = PAD_ID, END_ID
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)
        """The smallest numbers that hold every token."""
        self.fingerprint = make_fingerprint("sentencepiece", model.hex())
        self.token_bytes = [self._bytes_of(token) for token in range(self.vocab_size)]
        self.token_lengths = np.array([len(token) for token in self.token_bytes], dtype=np.int64)
        """Bytes of every token; padding and the end of a document have none."""
        self._space_mark = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE.encode()]

    def _bytes_of(self, token: int) -> bytes:
        if self._processor.is_control(token) or self._processor.is_unknown(token):
            return b""
        piece: str = self._processor.id_to_piece(token)
        if self._processor.is_byte(token):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(SPACE, " ").encode()

    def encode(self, text: str) -> list[int]:
        parts = text.split(SPACE)
        tokens: list[int] = self._processor.encode(parts[0])
        for part in parts[1:]:
            tokens += self._space_mark + self._processor.encode(part)
        return tokens

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        return b"".join(self.token_bytes[token] for token in tokens)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of the tokens; bytes of a character that is cut off at either end become U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")

    def num_bytes(self, tokens: Sequence[int] | np.ndarray) -> int:
        return int(self.token_lengths[np.asarray(tokens, dtype=np.int64)].sum())

    @staticmethod
    def open(path: str | Path) -> "Tokenizer":
        artifact = open_artifact(Path(path), "tokenizer", "retro tokenizer SOURCE --out " + str(path))
        return Tokenizer(artifact.file(MODEL_FILE).read_bytes())

    def expect(self, fingerprint: str, what: str, command: str) -> None:
        """Refuse something that was made with another tokenizer."""
        if fingerprint != self.fingerprint:
            raise ArtifactError(f"{what} was made with tokenizer {fingerprint}; expected {self.fingerprint}; run: {command}")


def train_tokenizer(texts: Iterable[str], path: Path, vocab_size: int, kind: str, inputs: dict[str, str]) -> Artifact:
    """Train a tokenizer of the kind `bpe` or `unigram` on the texts; `inputs` are the fingerprints of where they come from."""

    def work(stage: Stage) -> None:
        model = train_model(texts, vocab_size, kind)
        with stage.write(MODEL_FILE) as file:
            file.write(model)
        with stage.write("vocabulary.json") as file:
            file.write(json.dumps([token.decode("utf-8", "backslashreplace") for token in Tokenizer(model).token_bytes]).encode())
        stage.counts["tokens"] = vocab_size

    return run_stage(path, "tokenizer", {"vocab_size": vocab_size, "kind": kind}, inputs, work, f"retro tokenizer SOURCE --out {path}")


def train_model(texts: Iterable[str], vocab_size: int, kind: str = "bpe") -> bytes:
    """The bytes of a SentencePiece model. The texts are cut into lines, as SentencePiece learns within lines."""
    lines = (line for text in texts for line in text.splitlines() if line.strip())  # streamed: SentencePiece keeps its own copy
    first = next(lines, None)
    if first is None:
        raise DataError("the corpus holds no text to train a tokenizer on; expected at least one line")
    output = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=chain([first], lines),
            model_writer=output,
            model_type=kind,
            vocab_size=vocab_size,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            user_defined_symbols=["\n", "\t"],
            max_sentence_length=1 << 20,
            hard_vocab_limit=True,
            pad_id=PAD_ID,
            unk_id=UNKNOWN_ID,
            bos_id=-1,
            eos_id=END_ID,
            num_threads=2,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).strip().rpartition("] ")[2]
        raise DataError(
            f"a vocabulary of {vocab_size} cannot be learned from this text; {reason} Run again with another --vocab-size"
        ) from None
    return output.getvalue()
