"""Derives the speech tasks of a model: those for which a plugin provides prompts."""

from __future__ import annotations

from collections.abc import Sequence

from quire.records import Registry

HOOK = "quire_transcribers"


def with_speech(
    tasks: Sequence[str], architecture: str, modalities: Sequence[str], registry: Registry
) -> tuple[str, ...]:
    """`tasks`, with "transcribe" and "translate" added if the model generates from audio and a plugin supports it."""
    if "generate" not in tasks or "audio" not in modalities:
        return tuple(tasks)
    found = [record for record in registry.all(HOOK) if record.architecture == architecture]
    more = ("transcribe", *(("translate",) if any(record.translates for record in found) else ())) if found else ()
    return (*tasks, *more)
