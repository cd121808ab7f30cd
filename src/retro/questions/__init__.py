"""Question answering as in the paper: the model reads passages as its neighbours."""
