"""Gemma 4: each block gets an embedding of its own for every token, and the last blocks share keys and values."""
