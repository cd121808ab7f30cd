"""Text from a model that retrieves at the end of each chunk.

Read `request.py` (what is asked for), `sampler.py` (the loop), `sequence.py` (a
sample while it grows) and `drawing.py` (one token from its logits); the model's
side is `retro.model.decoding`.
"""
