"""How good a model is: bits per byte over whole documents, targets behind prompts, and where a gain comes from."""
