"""Architectures with a state of fixed size: hybrids with attention, and models without attention."""
