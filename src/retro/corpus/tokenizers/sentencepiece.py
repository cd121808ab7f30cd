"""SentencePiece tokenizers: trained on the corpus, with bytes for characters that have no token."""

import io
import json
import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import sentencepiece

from retro.corpus.tokenizers.tokenizer import COMMAND, Tokenizer
from retro.errors import ArtifactError, DataError
from retro.stages.files import make_fingerprint
from retro.stages.hints import with_paths
from retro.stages.stage import Artifact, Stage, run_stage

MODEL_FILE = "tokenizer.model"
PAD_ID = 0
UNKNOWN_ID = 1
END_ID = 2
SPACE = "▁"
"""How SentencePiece writes a space; a real U+2581 in the text is encoded by its bytes."""


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model, given as its bytes."""

    def __init__(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        token_bytes = [self._bytes_of(token) for token in range(self._processor.vocab_size())]
        super().__init__(token_bytes, PAD_ID, END_ID, make_fingerprint("sentencepiece", model.hex()))
        self._space_mark = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE.encode()]

    @staticmethod
    def read(folder: Path) -> "SentencePieceTokenizer":
        model = (folder / MODEL_FILE).read_bytes()
        try:
            # The library takes no bytes at all for a model that has no tokens.
            if model:
                return SentencePieceTokenizer(model)
        except RuntimeError:
            pass  # the same is wrong, and its message names a line of C++
        raise ArtifactError(
            f"{folder / MODEL_FILE} is empty or damaged; expected a SentencePiece model; "
            f"remove {folder} and run: {with_paths(COMMAND, folder)}"
        )

    def _bytes_of(self, token: int) -> bytes:
        if self._processor.is_control(token) or self._processor.is_unknown(token):
            return b""
        piece: str = self._processor.id_to_piece(token)
        if self._processor.is_byte(token):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(SPACE, " ").encode()

    def encode(self, text: str) -> list[int]:
        # SentencePiece would take a real U+2581 for a space: the text is cut there and the mark spelled out.
        parts = text.split(SPACE)
        tokens: list[int] = self._processor.encode(parts[0])
        for part in parts[1:]:
            tokens += self._space_mark + self._processor.encode(part)
        return tokens


def train_tokenizer(
    texts: Iterable[str], path: Path, vocab_size: int, kind: str, inputs: dict[str, str]
) -> Artifact:
    """Train a tokenizer of the kind `bpe` or `unigram`; `inputs` are the fingerprints of the texts."""

    def work(stage: Stage) -> None:
        model = train_model(texts, vocab_size, kind)
        with stage.write(MODEL_FILE) as file:
            file.write(model)
        token_bytes = SentencePieceTokenizer(model).token_bytes
        with stage.write("vocabulary.json") as file:
            vocabulary = [token.decode("utf-8", "backslashreplace") for token in token_bytes]
            file.write(json.dumps(vocabulary).encode())
        stage.counts["tokens"] = vocab_size

    return run_stage(path, "tokenizer", {"vocab_size": vocab_size, "kind": kind}, inputs, work, COMMAND)


def train_model(texts: Iterable[str], vocab_size: int, kind: str = "bpe") -> bytes:
    """The bytes of a SentencePiece model, which is learned line by line."""
    # Streamed, since SentencePiece keeps a copy of its own.
    lines = (line for text in texts for line in text.splitlines() if line.strip())
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
            # All of these together make it lossless: no normalisation, spaces kept, bytes for the rest.
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
        raise DataError(
            f"a vocabulary of {vocab_size} cannot be learned from this text; {_advice(str(error))}"
        ) from None
    return output.getvalue()


def _advice(reason: str) -> str:
    """What SentencePiece says of a vocabulary's size, in our words: it advises options that we have not."""
    if most := re.search(r"value <= (\d+)", reason):
        return (
            f"expected at most {most[1]}, as there is so little text; run again with --vocab-size {most[1]}"
        )
    if least := re.search(r"required_chars\. \d+ vs (\d+)", reason):
        return (
            f"expected at least {least[1]}, as so many bytes and characters need a token of their own; "
            f"run again with --vocab-size {least[1]} or more"
        )
    return f"{reason.strip().rpartition('] ')[2]} Run again with another --vocab-size"
