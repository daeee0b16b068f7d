"""Tokenizers and models of the demos."""
