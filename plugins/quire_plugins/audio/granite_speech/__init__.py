"""Granite Speech: a conformer, queries that read windows of its frames, and a Granite."""
