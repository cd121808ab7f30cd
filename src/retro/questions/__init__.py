"""Question answering: passages from any source enter through the retrieval pathway, as the paper does on Natural Questions."""
