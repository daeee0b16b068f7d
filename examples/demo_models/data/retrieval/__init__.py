"""Passages and questions about invented islands, for the embedder and the reranker."""
