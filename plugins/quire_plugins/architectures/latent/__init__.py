"""Families with latent attention, whose pages hold one compressed row per token."""
