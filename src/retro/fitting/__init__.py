"""Adding retrieval to a model that is already trained."""
