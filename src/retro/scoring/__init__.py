"""How good a model is: bits per byte of documents, targets behind prompts, and where a gain comes from."""
