"""Finds what builds a model, the architecture of a plugin or a fallback for architectures that no plugin has, and asks
it for the model's description.
"""
