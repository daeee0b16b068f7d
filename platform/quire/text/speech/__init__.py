"""Transcription of speech.

`transcription` splits a recording into windows, builds a prompt for each with the model's transcriber plugin, and
merges the outputs into a `Transcription` (transcript). `subtitles` formats its segments as SubRip and WebVTT.
"""
