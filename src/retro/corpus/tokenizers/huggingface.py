"""Hugging Face tokenizers, where they lose nothing: byte-level BPE, or pieces with byte fallback.

They are set to read special tokens in a text as plain text, and neither to normalise it nor to put a space
before it, so that what is decoded is what was encoded.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from retro import catalogue
from retro.catalogue import hub
from retro.corpus.tokenizers.tokenizer import COMMAND, Tokenizer
from retro.errors import ArtifactError, DataError
from retro.stages.files import DAMAGED, file_checksum, make_fingerprint
from retro.stages.stage import Artifact, Stage, run_stage

MODEL_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPACE = "▁"
BYTE = re.compile("<0x([0-9A-F]{2})>")
# Text that a tokenizer which loses anything is likely to lose.
PROBE = "A  probe,\twith\r\n\n  spaces, naïve ☕ ▁ 漢字 e\u0301 and <unk> </s> <|endoftext|>.\x00 "


REMEDY = "restore it, or name another tokenizer"


class HuggingFaceTokenizer(Tokenizer):
    """The tokenizer of a folder with `tokenizer.json` and `tokenizer_config.json`.

    A tokenizer that has no padding, or pads with its end token, gets one more id behind the vocabulary: then
    `pad_id` is `own_size`, and `vocab_size`, which counts it, is one more. A model that the tokenizer comes
    from has no embedding for that id, so whoever asks the model puts another in its place.
    """

    def __init__(self, path: Path) -> None:
        import tokenizers

        document = _read_json(path / MODEL_FILE)
        try:
            changed = json.dumps(_without_changes_to_the_text(document))
            self._tokenizer = tokenizers.Tokenizer.from_str(changed)
        except BaseException as error:
            # A panic of its Rust code is no `Exception`; an interrupt is none either, and goes on.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise ArtifactError(
                f"{path / MODEL_FILE} is no tokenizer ({error}); expected one that was saved; {REMEDY}"
            ) from None
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        config = _read_json(path / CONFIG_FILE) if (path / CONFIG_FILE).exists() else {}
        ids: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        try:
            end_id = ids.get(_content(config.get("eos_token")), -1)
            pad_id = ids.get(_content(config.get("pad_token")), -1)
            token_bytes = _token_bytes(document, ids)
        except DAMAGED as error:
            raise ArtifactError(
                f"{path} holds no whole tokenizer ({error}); expected one that was saved; {REMEDY}"
            ) from None
        if end_id < 0:
            raise DataError(
                f"{path} names no end token ({CONFIG_FILE}: eos_token); expected one that closes a document; "
                f"add it to {CONFIG_FILE}"
            )
        self.own_size = len(token_bytes)
        """The ids that the tokenizer has of its own, without a padding that was added to them."""
        if pad_id < 0 or pad_id == end_id:
            pad_id = len(token_bytes)
            token_bytes.append(b"")
        # Neither stands for text, whatever the vocabulary spells them.
        token_bytes[pad_id] = b""
        token_bytes[end_id] = b""
        fingerprint = make_fingerprint("huggingface", file_checksum(path / MODEL_FILE), pad_id, end_id)
        super().__init__(token_bytes, pad_id, end_id, fingerprint)
        self.path = path
        # The three bytes of U+2581, if the vocabulary has tokens for single bytes.
        spelled = [ids.get(f"<0x{byte:02X}>", -1) for byte in SPACE.encode()]
        self._space_mark = spelled if min(spelled) >= 0 else None
        self.encode(PROBE)  # a tokenizer that loses text is refused before it is used

    def encode(self, text: str) -> list[int]:
        # With byte fallback a space is written as U+2581, so a real one is spelled out by its bytes.
        parts = text.split(SPACE) if self._space_mark else [text]
        tokens: list[int] = self._tokenizer.encode(parts[0], add_special_tokens=False).ids
        for part in parts[1:]:
            tokens += (self._space_mark or []) + self._tokenizer.encode(part, add_special_tokens=False).ids
        if self.num_bytes(tokens) != len(text.encode()):
            decoded = self.decode(tokens)
            differs = (
                place for place, pair in enumerate(zip(text, decoded, strict=False)) if len(set(pair)) > 1
            )
            # From a little before the first difference on; text that is lost at the end differs nowhere.
            start = max(0, next(differs, len(decoded)) - 10)
            shown = slice(start, start + 40)
            raise DataError(
                f"the tokenizer {self.path} loses text: {text[shown]!r} comes back as {decoded[shown]!r}; "
                "expected byte-level BPE or byte fallback, which give every text back; "
                "use another tokenizer or train one"
            )
        return tokens


def expect_embedded(folder: Path) -> None:
    """Refuse a base whose tokenizer has ids that its embedding does not have."""
    if not (folder / MODEL_FILE).exists():
        return  # `copy_tokenizer` says so, whether or not the tokenizer is a base's
    ids = HuggingFaceTokenizer(folder).own_size
    rows = catalogue.embedding_size(folder)
    if ids > rows:
        raise DataError(
            f"the tokenizer of {folder} has {ids:,} ids and its model embeds {rows:,}; "
            "expected an embedding for every id; resize the model's and save it again"
        )


def copy_tokenizer(name: str, path: Path) -> Artifact:
    """Put the tokenizer of a base of the catalogue, a folder or a hub id into a finished folder of ours."""
    folder = _folder_of(name)

    def work(stage: Stage) -> None:
        for file_name in (MODEL_FILE, CONFIG_FILE):
            if (folder / file_name).exists():
                with stage.write(file_name) as file:
                    file.write((folder / file_name).read_bytes())
        stage.counts["tokens"] = HuggingFaceTokenizer(stage.path).vocab_size

    inputs = {MODEL_FILE: file_checksum(folder / MODEL_FILE)}
    return run_stage(path, "tokenizer", {"kind": "huggingface"}, inputs, work, COMMAND)


def _folder_of(name: str) -> Path:
    folder = catalogue.folder_of_base(name) if name in catalogue.ENTRIES else Path(name)
    if not folder.exists():
        if not hub.is_id(name):
            raise DataError(f"{name!r} is no folder and no id of the hub; expected one for a tokenizer")
        folder = hub.snapshot(name, (MODEL_FILE, CONFIG_FILE), "tokenizer")
    if not (folder / MODEL_FILE).exists():
        raise DataError(
            f"{name} has no {MODEL_FILE}; expected a folder or a hub id with a fast tokenizer; "
            "save it with save_pretrained"
        )
    return folder


def _read_json(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise DataError(f"{file} is empty or damaged; expected a JSON object; save it again")
    return document


def _content(token: Any) -> str:
    """A special token's text; configs give it plain or as an object."""
    return (token.get("content") if isinstance(token, dict) else token) or ""


def _without_changes_to_the_text(document: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer without normalisation, except for spaces, and without a leading space."""
    normalizer = document.get("normalizer") or {}
    steps = normalizer.get("normalizers", [normalizer])
    spelling = [step for step in steps if step.get("type") == "Replace" and step.get("content") == SPACE]
    changed = {
        "normalizer": spelling[0] if spelling else None,
        "pre_tokenizer": _without_leading_space(document.get("pre_tokenizer")),
        "post_processor": None,
    }
    return {**document, **changed}


def _without_leading_space(part: Any) -> Any:
    """A part of `tokenizer.json` with both ways to ask for a space before the text turned off."""
    if isinstance(part, list):
        return [_without_leading_space(item) for item in part]
    if not isinstance(part, dict):
        return part
    part = {key: _without_leading_space(value) for key, value in part.items()}
    if "add_prefix_space" in part:
        part["add_prefix_space"] = False
    if "prepend_scheme" in part:
        part["prepend_scheme"] = "never"
    return part


def _token_bytes(document: dict[str, Any], ids: dict[str, int]) -> list[bytes]:
    """The bytes of every id; special tokens and gaps have none, other added tokens stand for themselves."""
    table: list[bytes] = [b""] * (max(ids.values()) + 1)
    added = {token["content"]: not token["special"] for token in document.get("added_tokens", ())}
    # Its decoder or pre-tokenizer tells which of the two ways it has to spell bytes.
    byte_level = "ByteLevel" in json.dumps([document.get("decoder"), document.get("pre_tokenizer")])
    for piece, token in ids.items():
        if piece in added:
            table[token] = piece.encode() if added[piece] else b""
        else:
            table[token] = _byte_level(piece) if byte_level else _with_fallback(piece)
    return table


def _with_fallback(piece: str) -> bytes:
    byte = BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE, " ").encode()


def _byte_level(piece: str) -> bytes:
    return bytes(_bytes_by_character().get(character, 0x3F) for character in piece)


@cache
def _bytes_by_character() -> dict[str, int]:
    """How byte-level BPE spells bytes: printable Latin-1 as itself, the others, in order, from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {chr(byte): byte for byte in printable}
    characters |= {chr(0x100 + number): byte for number, byte in enumerate(others)}
    return characters
