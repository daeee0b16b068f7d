"""Adapters of a model on several ranks: all ranks read them, and they have the same slots everywhere."""
