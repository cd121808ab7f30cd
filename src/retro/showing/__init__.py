"""A fitted model, shown: scored beside its base, sampled with a source and without it, on one page."""
