"""Conversations about the Lantern Isles: facts, wordings, question kinds, answer styles."""
