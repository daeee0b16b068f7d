"""Limits of media: their number, size and decoding time, and the places they may come from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from quire.errors import ConfigError, TooLarge, Unprocessable
from quire.records import Registry
from quire.settings.model_config import ModelConfig

MODALITIES = frozenset({"image", "audio", "video"})
"""Modalities that are decoded here. Items of other modalities, which plugins add, are passed on unchanged."""

DEFAULT_ITEMS = 64
"""Maximum number of items of a modality in a prompt, unless `limit_mm_per_prompt` sets one."""

PILLOW_MAX_PIXELS = 2 * (1024**3 // 4 // 3)
"""Pillow refuses to open an image with more pixels."""


@dataclass(frozen=True, kw_only=True)
class MediaLimits:
    """Limits of the media of one model.

    items: by modality, the maximum number in one prompt. max_bytes: of one item, and of all items of a prompt together.
    max_image_pixels: of an image, and of a frame of a video. max_pixels: of all images of a prompt together.
    timeout_s: to fetch one item, and to decode one. decode_s: to decode all items of a prompt.
    max_s: seconds of an audio or video. max_frames: frames taken out of one video. allowed_folder: the folder of
    file: URLs, None = they are refused. allowed_domains: hosts of http: and https: URLs, () = any.
    private_addresses: whether hosts may be in private networks or on this machine.
    """

    items: Mapping[str, int] = field(default_factory=dict)
    max_bytes: int = 64 << 20
    max_image_pixels: int = 89_478_485
    max_pixels: int = 4 * 89_478_485
    timeout_s: float = 15.0
    decode_s: float = 30.0
    max_redirects: int = 3
    max_s: float = 600.0
    max_frames: int = 128
    allowed_folder: Path | None = None
    allowed_domains: frozenset[str] = frozenset()
    private_addresses: bool = False

    @classmethod
    def from_config(cls, config: ModelConfig, registry: Registry) -> MediaLimits:
        """The limits of a model's settings. Raises ConfigError for a missing folder or an invalid limit.

        registry: its input mappers define the known modalities. Models may share settings, so limits of modalities that
        this model does not take are accepted.
        """
        known = {record.modality for record in registry.all("quire_input_mappers")} | MODALITIES
        if unknown := sorted(set(config.limit_mm_per_prompt) - known):
            raise ConfigError(
                f"--limit-mm-per-prompt: there is no modality {unknown[0]!r:.40}; there are {', '.join(sorted(known))}."
            )
        folder = config.allowed_local_media_path
        path = Path(folder).expanduser().resolve() if folder else None
        if path is not None and not path.is_dir():
            raise ConfigError(f"--allowed-local-media-path {folder!r} is not a folder.")
        if config.max_image_pixels > PILLOW_MAX_PIXELS:
            raise ConfigError(f"--max-image-pixels must be at most {PILLOW_MAX_PIXELS}; got {config.max_image_pixels}.")
        return cls(
            items={name: _count(name, value) for name, value in config.limit_mm_per_prompt.items()},
            max_bytes=config.max_media_bytes,
            max_image_pixels=config.max_image_pixels,
            max_pixels=config.max_prompt_pixels,
            decode_s=config.media_decode_timeout_s,
            timeout_s=config.media_timeout_s,
            max_redirects=config.max_media_redirects,
            max_s=config.max_media_seconds,
            max_frames=config.max_video_frames,
            allowed_folder=path,
            allowed_domains=frozenset(name.lower().rstrip(".") for name in config.allowed_media_domains),
            private_addresses=config.allow_private_media_addresses,
        )

    def max_items(self, modality: str) -> int:
        """The maximum number of items of a modality in one prompt."""
        return self.items.get(modality, DEFAULT_ITEMS)


class Budget:
    """The number of bytes that the media of one prompt may still use. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._remaining = max_bytes
        self._lock = Lock()

    def consume(self, count: int) -> None:
        """Subtract bytes that were read. Raises TooLarge when the budget is exceeded."""
        with self._lock:
            self._remaining -= count
            remaining = self._remaining
        if remaining < 0:
            raise TooLarge(f"The media of one prompt may have at most {self._max_bytes} bytes (--max-media-bytes).")

    @property
    def remaining(self) -> int:
        """Bytes that may still be read."""
        return max(0, self._remaining)


class DecodingTime:
    """The time left to decode the media of one prompt. Used by one thread at a time. now: a clock in seconds.

    audio_s: seconds of the audio that was decoded.
    """

    def __init__(self, limit_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._now = limit_s, now
        self._spent_s = self.audio_s = 0.0

    @property
    def remaining_s(self) -> float:
        """Remaining seconds. Raises Unprocessable if there are none."""
        if self._spent_s >= self._limit_s:
            raise Unprocessable(
                f"Decoding the media of the prompt took longer than {self._limit_s:g} seconds"
                " (--media-decode-timeout-s)."
            )
        return self._limit_s - self._spent_s

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Subtract the time of the `with` block."""
        begin = self._now()
        try:
            yield
        finally:
            self._spent_s += self._now() - begin


def _count(modality: str, value: Any) -> int:
    """The number of `4` or of the long form `{"count": 4}`."""
    count = value.get("count") if isinstance(value, Mapping) else value
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ConfigError(
            f"--limit-mm-per-prompt: {modality} must be a number of items, at least 0, such as"
            f' {{"{modality}": 4}} or {modality}=4; got {value!r:.80}.'
        )
    return count
