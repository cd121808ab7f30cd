"""Text from a model, a retrieval at each chunk's end."""
