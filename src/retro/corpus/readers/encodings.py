"""The encoding of a text: what a byte order mark says, then UTF-8, then what a detector makes of it."""

import codecs
import re

from retro.corpus.readers.problems import Kind, Problems

MARKS = (
    # The marks of UTF-32 begin with those of UTF-16, and come first.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
SIGNATURES = (
    *(b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"PK\x03\x04", b"Rar!", b"7z\xbc\xaf", b"\xfd7zXZ"),
    *(b"\x7fELF", b"\xca\xfe\xba\xbe", b"OggS", b"ID3", b"fLaC", b"wOF2", b"\xd0\xcf\x11\xe0"),
)
"""How common files begin that hold no text, even where no zero byte tells it."""
ZERO_BYTES = 8_000
"""A zero byte among so many at the start marks a binary file, as it does for git."""
CONTROL = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
CONTROL_SHARE = 0.05
"""More control characters than this part of the bytes make no text either."""
UNPRINTABLE = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
FOREIGN = re.compile(rb"[\x80-\xff]")
FEW = 8
"""Fewer bytes beyond ASCII say nothing about a language: the most common encoding is taken."""
WESTERN = "windows-1252"
DAMAGED = "utf-8 with U+FFFD for damaged bytes"
UTF8 = "utf-8-sig"
"""UTF-8, with a byte order mark or without."""
SAMPLE = 1_000
"""Bytes that the detector looks at: it is slow, and more of them hardly change what it finds."""


def decode(content: bytes, where: str, problems: Problems) -> str | None:
    """The text without a byte order mark; nothing, and a problem, where the bytes are no known text."""
    encoding = _mark_of(content) or (_wide_encoding(content) if b"\0" in content else "")
    if not encoding and is_binary(content):
        problems.add(where, "is binary; expected text", Kind.BINARY, len(content))
        return None
    position = 0
    if not encoding:
        try:
            return content.decode(UTF8)
        except UnicodeDecodeError as error:
            position = error.start
        # A few bytes that were lost must not cost the rest.
        if _is_damaged_utf8(content) and not problems.strict:
            problems.encodings[DAMAGED] += 1
            return content.decode(UTF8, errors="replace")
        encoding = detect(content)
    text = decode_as(content, encoding)
    if text is None:
        problems.add(where, not_utf8(content, position), size=len(content))
        return None
    problems.encodings[encoding] += 1
    return text


def not_utf8(content: bytes, position: int) -> str:
    return (
        f"is not UTF-8 (byte {position} is 0x{content[position]:02x}), nor in another encoding that can be "
        "told; expected UTF-8; convert or remove it"
    )


def is_binary(content: bytes) -> bool:
    """Whether the bytes, which may be the first of many, are no text in any encoding."""
    if content.startswith(SIGNATURES):
        return True
    if b"\0" in content[:ZERO_BYTES]:
        return not _mark_of(content) and not _wide_encoding(content)
    return len(CONTROL.findall(content)) > CONTROL_SHARE * len(content)


def detect(content: bytes) -> str:
    """The likely encoding of a text that is not UTF-8 and has no zero bytes; empty where nobody can tell."""
    if _is_damaged_utf8(content):
        return ""
    if len(FOREIGN.findall(content)) < FEW:
        return WESTERN
    # Only lines with something to tell are looked at: most of a text is often plain ASCII.
    telling = b"\n".join(line for line in content.splitlines() if not line.isascii())
    found = FOREIGN.search(telling)
    start = max(0, found.start() - SAMPLE // 10) if found else 0
    return _detected(telling[start : start + SAMPLE])


def decode_as(content: bytes, encoding: str) -> str | None:
    """The text in this encoding; nothing where some of its bytes are no characters, or control something."""
    try:
        text = content.decode(encoding) if encoding else ""
    except (UnicodeDecodeError, LookupError):
        return None
    return text if text and not UNPRINTABLE.search(text) else None


def encoding_of_table(head: bytes) -> str:
    """The encoding of a file of records: UTF-8 unless its head tells another.

    One bad record must not decide about all others: a few bytes beyond ASCII are not enough, and a single
    character that is UTF-8 is more than they are.
    """
    if mark := _mark_of(head):
        return mark
    has_utf8 = not head.decode("utf-8", errors="ignore").isascii()
    if has_utf8 or len(FOREIGN.findall(head)) < FEW:
        return UTF8
    return detect(head) or UTF8


def _is_damaged_utf8(content: bytes) -> bool:
    """Whether most bytes beyond ASCII are whole characters of UTF-8: no other encoding would be right."""
    num_utf8 = len(FOREIGN.findall(content.decode("utf-8", errors="ignore").encode()))
    return 2 * num_utf8 > len(FOREIGN.findall(content))


def _mark_of(content: bytes) -> str:
    return next((name for mark, name in MARKS if content.startswith(mark)), "")


def _wide_encoding(content: bytes) -> str:
    """UTF-16 or UTF-32 without a mark, which the detector tells by the places of the zero bytes."""
    sample = content[:SAMPLE]
    found = _detected(sample)
    # Two bytes or four of a binary file may well be characters, but hardly all of them printable ones.
    return found if found.startswith(("utf-16", "utf-32")) and decode_as(sample, found) else ""


def _detected(sample: bytes) -> str:
    # Its tables take a third of a second to load, and most text is UTF-8.
    import chardet

    found = (chardet.detect(sample)["encoding"] or "").lower()
    try:
        codecs.lookup(found)
    except LookupError:
        return ""  # one that Python has no codec for, or none
    return found
