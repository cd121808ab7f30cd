"""Text from tokens as they come: characters and stop texts may lie across tokens."""

import codecs
from collections.abc import Sequence

from retro.corpus.tokenizers.tokenizer import Tokenizer


class TextStream:
    """Turns a sample's tokens into text; what may still become a character or a stop text is held back."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, [text.encode() for text in stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = b""
        self.num_bytes = 0
        """Bytes of the text so far, what is held back included; up to a stop text if one was met."""

    def push(self, token: int, may_stop: bool = True) -> tuple[str, bool]:
        """The text that is certain now, and whether a stop text was met, which is left out with all behind it."""
        new = self._tokenizer.decode_bytes([token])
        self._held += new
        self.num_bytes += len(new)
        found = [place for place in map(self._held.find, self._stop) if place >= 0] if may_stop else []
        if found:
            self.num_bytes -= len(self._held) - min(found)
            self._held = self._held[: min(found)]
            return self.finish(), True
        certain = len(self._held) - self._may_begin()
        text, self._held = self._decoder.decode(self._held[:certain]), self._held[certain:]
        return text, False

    def finish(self) -> str:
        """What was held back; a character that will never be whole becomes U+FFFD."""
        text, self._held = self._decoder.decode(self._held, final=True), b""
        return text

    def _may_begin(self) -> int:
        """The longest end of the text that begins a stop text."""
        lengths = (
            n
            for stop in self._stop
            for n in range(min(len(stop) - 1, len(self._held)), 0, -1)
            if self._held.endswith(stop[:n])
        )
        return max(lengths, default=0)
