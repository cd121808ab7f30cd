"""Generating text with a model that retrieves at the end of each chunk.

Read `request.py` (what is asked for), `sampler.py` (what is called), `batch.py` (the loop), `sequence.py` (a
sample in progress) and `drawing.py` (one token from its logits). The model's side is
`retro.model.decoding`.
"""
