"""Finds what builds a model: the architecture of a plugin, or a fallback for the architectures that no plugin has."""
