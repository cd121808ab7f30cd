"""Tokenizers that lose nothing, of two kinds: trained on the corpus, or taken from a Hugging Face model."""

from retro.corpus.tokenizers import huggingface, sentencepiece
from retro.corpus.tokenizers.huggingface import HuggingFaceTokenizer, copy_tokenizer, expect_embedded
from retro.corpus.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from retro.corpus.tokenizers.tokenizer import KINDS, Tokenizer

__all__ = [
    "HuggingFaceTokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "copy_tokenizer",
    "expect_embedded",
    "train_tokenizer",
]

# Python runs this file before any module of the package, so `Tokenizer.open` always knows both kinds.
KINDS[huggingface.MODEL_FILE] = HuggingFaceTokenizer
KINDS[sentencepiece.MODEL_FILE] = SentencePieceTokenizer.read
