"""Question answering as in the paper: passages from any source enter
through the retrieval pathway."""
