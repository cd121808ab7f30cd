"""The model: Algorithm 1 of the paper. It knows only tensors: no tokenizer, no
index, no corpus files.

Words in the tensor signatures:

    batch       sequences of a batch
    seq         tokens of a sequence, n in the paper; need not be a multiple of the chunk length
    chunk       complete chunks of a sequence, l in the paper when seq is a multiple of m
    m           tokens of a chunk
    neighbour   neighbours of a chunk, k in the paper
    retrieved   tokens of [N, F], r in the paper
    d_model     width of the decoder, d in the paper; the encoder's is d_encoder, d'
    heads, head_dim     head_dim · heads need not be d_model
    vocab       tokens the tokenizer knows

Masks are true where attention is allowed. Nothing ever attends to padding.
"""
