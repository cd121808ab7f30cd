"""From anybody's text to tokens: readers, text, tokenizers, encoding, decontamination, token stores, mixtures."""
