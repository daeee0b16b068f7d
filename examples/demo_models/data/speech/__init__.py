"""Spoken digits from a formant synthesizer."""
