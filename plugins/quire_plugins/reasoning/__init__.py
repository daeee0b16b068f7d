"""Reasoning formats: delimiters by parser name, gpt-oss's channels, and the limit on reasoning tokens."""
