"""Formats transcript segments as subtitles: SubRip (srt) and WebVTT (vtt)."""

from __future__ import annotations

from collections.abc import Sequence

from quire.text.speech.transcript import TranscriptSegment

_ARROW = "-->"


def srt(segments: Sequence[TranscriptSegment]) -> str:
    """SubRip text of the segments."""
    return "\n".join(
        f"{number}\n{_time(one.start_s, ',')} {_ARROW} {_time(one.end_s, ',')}\n{_line(one)}\n"
        for number, one in enumerate(segments, 1)
    )


def vtt(segments: Sequence[TranscriptSegment]) -> str:
    """WebVTT text of the segments."""
    cues = [f"{_time(one.start_s, '.')} {_ARROW} {_time(one.end_s, '.')}\n{_line(one)}\n" for one in segments]
    return "\n".join(["WEBVTT\n", *cues])


def _line(segment: TranscriptSegment) -> str:
    """The text of a segment in one line, without an arrow, which would be parsed as a cue's timing."""
    return " ".join(segment.text.split()).replace(_ARROW, "->")


def _time(seconds: float, separator: str) -> str:
    millis = round(seconds * 1000)
    return f"{millis // 3_600_000:02}:{millis // 60_000 % 60:02}:{millis // 1000 % 60:02}{separator}{millis % 1000:03}"
