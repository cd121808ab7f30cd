"""From anybody's text to tokens: readers, catalogue, tokenizer, splits, decontamination, token stores."""
