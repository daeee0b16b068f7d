"""Drafters of speculative decoding: each module is a plugin."""
