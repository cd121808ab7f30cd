"""Conversations as the base was taught them: its own template, and its own special tokens."""

from pathlib import Path
from typing import Any

from retro.corpus.tokenizers.huggingface import HuggingFaceTokenizer
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.serving import schema
from retro.serving.problems import ProblemError

NO_TEMPLATE = (
    "this model has no chat template: it continues text; expected /v1/completions, or a model that was "
    "RETROfitted from a base that was taught to converse"
)


class ChatTemplate:
    """Turns a conversation into the tokens that the base goes on with."""

    def __init__(self, hub_tokenizer: Any) -> None:
        self._tokenizer = hub_tokenizer
        self.text: str = str(hub_tokenizer.chat_template)
        self.special: list[str] = [text for text in hub_tokenizer.all_special_tokens if text]

    @staticmethod
    def of(tokenizer: Tokenizer, base: Path | None = None) -> "ChatTemplate | None":
        """That of a run's tokenizer, or of the folder of its base; None if neither has one."""
        if not isinstance(tokenizer, HuggingFaceTokenizer):
            return None
        from transformers import AutoTokenizer

        for folder in (tokenizer.path, base):
            if folder is not None and (folder / "tokenizer_config.json").exists():
                found = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
                if found.chat_template:
                    return ChatTemplate(found)
        return None

    def encode(self, messages: list[schema.Message]) -> tuple[list[int], str]:
        """The tokens of a conversation, up to where the answer begins, and their text."""
        turns = [self._turn(message) for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # noqa: BLE001 — a template is a program that may refuse in its own way
            raise ProblemError(
                400, f"the chat template refuses the conversation: {error}", "messages"
            ) from None
        tokens: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens, text

    def _turn(self, message: schema.Message) -> dict[str, str]:
        content = message.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        # What stands for a turn's border in the template must not come from whoever writes a turn.
        for text in self.special:
            if text in content:
                raise ProblemError(
                    400, f"a message holds {text!r}, which only the template may write", "messages"
                )
        # OpenAI's newer name of the system; no template knows it.
        role = "system" if message.role == "developer" else message.role
        return {"role": role, "content": content}
