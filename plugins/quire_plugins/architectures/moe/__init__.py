"""Families whose blocks are mixtures of experts."""
