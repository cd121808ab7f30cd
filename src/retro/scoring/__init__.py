"""How good a model is: bits per byte of documents, targets after prompts, and where gains come from."""
