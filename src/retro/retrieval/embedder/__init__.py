"""Embedders: the frozen models or tables that make keys and queries."""

from retro.retrieval.embedder.bert import BertEmbedder
from retro.retrieval.embedder.embedder import Embedder, embed_shards, open_embedder, open_in_worker
from retro.retrieval.embedder.static import StaticEmbedder

__all__ = ["BertEmbedder", "Embedder", "StaticEmbedder", "embed_shards", "open_embedder", "open_in_worker"]
