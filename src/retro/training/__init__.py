"""One training loop for the baseline and for RETRO."""
