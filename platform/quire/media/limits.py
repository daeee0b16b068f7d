"""What media may cost, and where they may come from. It reads nothing itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from quire.config import ModelConfig
from quire.errors import ConfigError, TooLarge, Unprocessable
from quire.records import Registry

MODALITIES = frozenset({"image", "audio", "video"})
"""Those that can be decoded; plugins may bring others, whose items they take as they are."""

DEFAULT_ITEMS = 64
"""Items of one modality in a prompt, where `limit_mm_per_prompt` says nothing of it."""

PILLOWS_PIXELS = 2 * (1024**3 // 4 // 3)
"""Beyond these Pillow itself refuses to open an image."""


@dataclass(frozen=True, kw_only=True)
class MediaLimits:
    """Bounds of one model's media.

    items: by modality, the most in one prompt. max_bytes: of one item, and of all items of a prompt together.
    max_image_pixels: of an image, and of a frame of a video. max_pixels: of all images of a prompt together.
    timeout_s: to fetch one item; to decode one. decode_s: to decode all items of a prompt.
    max_s: longest audio or video. max_frames: most frames taken out of one video.
    allowed_folder: where file: URLs may lead, None = nowhere. allowed_domains: hosts that may be asked, () = any.
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
    def of(cls, config: ModelConfig, registry: Registry) -> MediaLimits:
        """From a model's settings; raises ConfigError for a folder that is none, or a limit that cannot be.

        registry: whose mappers say which modalities there are. Models may share a setting, so a limit of one that
        this model does not take is none of its business.
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
        if config.max_image_pixels > PILLOWS_PIXELS:
            raise ConfigError(f"--max-image-pixels must be at most {PILLOWS_PIXELS}; got {config.max_image_pixels}.")
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

    def most(self, modality: str) -> int:
        """Most items of a modality in one prompt."""
        return self.items.get(modality, DEFAULT_ITEMS)


class Budget:
    """How many bytes the media of one prompt may still have. Threads may share it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._left = max_bytes
        self._lock = Lock()

    def take(self, count: int) -> None:
        """Count bytes that were read; raises TooLarge when there are more than allowed."""
        with self._lock:
            self._left -= count
            left = self._left
        if left < 0:
            raise TooLarge(f"The media of one prompt may have at most {self._max_bytes} bytes (--max-media-bytes).")

    @property
    def left(self) -> int:
        """Bytes that may still come."""
        return max(0, self._left)


class DecodingTime:
    """How long the media of one prompt may still be decoded. One thread at a time. now: a clock of seconds."""

    def __init__(self, limit_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._now = limit_s, now
        self._spent_s = 0.0

    @property
    def left_s(self) -> float:
        """Seconds that are left; raises Unprocessable if none are."""
        if self._spent_s >= self._limit_s:
            raise Unprocessable(
                f"Decoding the media of the prompt took longer than {self._limit_s:g} seconds"
                " (--media-decode-timeout-s)."
            )
        return self._limit_s - self._spent_s

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The block's time counts."""
        begin = self._now()
        try:
            yield
        finally:
            self._spent_s += self._now() - begin


def _count(modality: str, value: Any) -> int:
    """`4`, or the long form `{"count": 4}`."""
    given = value.get("count") if isinstance(value, Mapping) else value
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ConfigError(
            f"--limit-mm-per-prompt: {modality} must be a number of items, at least 0, such as"
            f' {{"{modality}": 4}} or {modality}=4; got {value!r:.80}.'
        )
    return given
