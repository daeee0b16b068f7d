"""Tensors of a checkpoint: their names in transformers' models, and what transformers converts when it loads them."""
