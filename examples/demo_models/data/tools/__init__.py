"""Dialogues that call tools, and texts to fill into JSON schemas."""
