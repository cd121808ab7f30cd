"""From anybody's text to tokens: readers, text, tokenizers, decontamination, token stores, mixtures."""
