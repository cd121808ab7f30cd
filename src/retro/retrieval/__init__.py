"""The key-value memory: chunks, keys from a frozen BERT, an index, and the neighbours of every chunk."""
