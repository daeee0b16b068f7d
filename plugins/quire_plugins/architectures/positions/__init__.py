"""Families whose attention knows positions in a way of its own: sinks, chunks, ALiBi, layers without positions."""
