"""Fetches and decodes the media of prompts within the limits of one model.

    MediaURL, path or bytes ─▶ MediaBytes ─▶ Pillow image, `Audio` or `Video`

Items of modalities that plugins add are passed on unchanged.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from quire.errors import BadRequest, Overloaded, QuireError
from quire.media.fetching.addresses import Resolve
from quire.media.fetching.fetcher import Fetcher, TraceFetch
from quire.media.fetching.local import read_data_url, read_file_url, read_path
from quire.media.isolated_media import CAN_SHARE, IsolatedMedia
from quire.media.items import MediaBytes, MediaURL
from quire.media.limits import MODALITIES, Budget, DecodingTime, MediaLimits
from quire.media.weights import is_heavy

T = TypeVar("T")

MAX_FETCHES = 16
"""Items fetched over HTTP concurrently; others wait."""

MAX_WAITING = 1024
"""Items that may wait to be fetched; with more, prompts are refused."""

NUM_THREADS = max(2, min(8, os.cpu_count() or 2))
"""Threads that decode and map light media."""

NUM_HEAVY_THREADS = max(1, NUM_THREADS // 2)
"""Threads that decode and map large images, audio and video, so that small images do not wait for these."""

MAX_HEAVY_WAITING = 32
"""Prompts with heavy media that may wait for a thread; more are refused."""

NUM_LOOKUPS = 8
"""Threads for DNS lookups, which may take long."""


class MediaLoader:
    """Fetches and decodes the media of one model's prompts. Threads and event loops may share it.

    resolve: the DNS lookup, None = that of the system. trace_fetch: traces requests to other servers.
    """

    def __init__(
        self,
        limits: MediaLimits | None = None,
        resolve: Resolve | None = None,
        trace_fetch: TraceFetch | None = None,
    ) -> None:
        self._limits = limits or MediaLimits()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="quire-media")
        self._heavy = ThreadPoolExecutor(NUM_HEAVY_THREADS, thread_name_prefix="quire-large-media")
        self._num_heavy = 0
        self._isolated = IsolatedMedia(self._limits.timeout_s)
        self._lookups = ThreadPoolExecutor(NUM_LOOKUPS, thread_name_prefix="quire-names")
        self._fetcher = Fetcher(self._limits, self._lookups, resolve, trace_fetch)
        self._fetch_slots = asyncio.Semaphore(MAX_FETCHES)
        self._waiting = 0

    def check_count(self, modality: str, count: int, param: str) -> None:
        """Raise `BadRequest` for more items of a modality than a prompt may have."""
        limit = self._limits.max_items(modality)
        if count > limit:
            raise BadRequest(
                f"At most {limit} {modality} item(s) may be given in one prompt (--limit-mm-per-prompt); got {count}.",
                param,
            )

    async def fetch(self, items: Mapping[str, Sequence[Any]], param: str) -> dict[str, list[Any]]:
        """Fetch and read the items of each modality: URLs, paths and bytes of files become `MediaBytes`.

        A string is a URL or a path. Raises `BadRequest`, TooLarge or Unprocessable, which name the item, and Overloaded
        when too many items are waiting.
        """
        return await self._fetch_all(items, param, self._fetch_slots)

    def fetch_sync(self, items: Mapping[str, Sequence[Any]], param: str) -> dict[str, list[Any]]:
        """Do what `fetch` does, but block; the calling thread may have a running event loop."""
        if not any(_needs_fetching(name, item) for name, several in items.items() for item in several):
            return {name: list(several) for name, several in items.items()}
        with ThreadPoolExecutor(1) as thread:  # a new thread has no event loop yet
            return thread.submit(_run, lambda: self._fetch_all(items, param, asyncio.Semaphore(MAX_FETCHES))).result()

    async def run(self, work: Callable[[], T], items: Mapping[str, Sequence[Any]] | None = None) -> T:
        """Run `work`, which decodes and maps `items` (by modality), in one of the threads.

        Raises TooLarge for images with too many pixels in total, Overloaded when too much heavy work is waiting.
        """
        loop = asyncio.get_running_loop()
        if not items or not await loop.run_in_executor(self._threads, is_heavy, items, self._limits):
            return await loop.run_in_executor(self._threads, work)
        if self._num_heavy >= NUM_HEAVY_THREADS + MAX_HEAVY_WAITING:
            raise Overloaded("Too many prompts with large media wait to be decoded; try again later.")
        self._num_heavy += 1
        try:
            return await loop.run_in_executor(self._heavy, work)
        finally:
            self._num_heavy -= 1

    def decode(self, modality: str, item: Any) -> Any:
        """Decode an item to an RGB image of Pillow, `Audio` or `Video`; other modalities are unchanged. Blocks."""
        if modality not in MODALITIES:
            return item
        from quire.media import audio, images, video  # imports numpy, which a server for text does not need

        if isinstance(item, MediaBytes):
            limits = replace(self._limits, timeout_s=min(self._limits.timeout_s, item.time.remaining_s))
            with item.time.measure():
                decoded = self._decode_item(modality, item, limits)
            item.time.audio_s += decoded.duration_s if modality == "audio" else 0.0
            return decoded
        if modality == "image":
            return images.as_image(item, self._limits.max_image_pixels)
        return audio.as_audio(item, self._limits) if modality == "audio" else video.as_video(item, self._limits)

    def _decode_item(self, modality: str, item: MediaBytes, limits: MediaLimits) -> Any:
        from quire.media import audio, images, video, wav

        if modality == "image":
            pixels = limits.max_image_pixels
            counted = images.num_pixels(item.data)
            if CAN_SHARE and counted <= pixels and images.is_costly(item.data, counted):
                return self._isolated.image(item.data, pixels, item.low_detail, limits.timeout_s)
            return images.decode_image(item.data, pixels, item.low_detail)
        if modality == "audio":
            if CAN_SHARE and item.data and not wav.is_plain_wav(item.data):
                return self._isolated.audio(item.data, limits)
            return audio.decode_audio(item.data, limits)
        if CAN_SHARE:
            return self._isolated.video(item.data, limits, item.time)
        return video.decode_video(item.data, limits)

    def close(self) -> None:
        """End the threads after their current work."""
        self._threads.shutdown(wait=False)
        self._heavy.shutdown(wait=False)
        self._isolated.close()
        self._lookups.shutdown(wait=False)

    async def _fetch_all(
        self, items: Mapping[str, Sequence[Any]], param: str, slots: asyncio.Semaphore
    ) -> dict[str, list[Any]]:
        count = sum(map(len, items.values()))
        if self._waiting + count > MAX_WAITING:
            raise Overloaded("Too many media are being fetched; try again later.", param)
        self._waiting += count
        budget, decoding = Budget(self._limits.max_bytes), DecodingTime(self._limits.decode_s)
        tasks = {
            name: [
                asyncio.ensure_future(self._fetch_item(name, item, (i, len(several)), budget, slots, param))
                for i, item in enumerate(several)
            ]
            for name, several in items.items()
        }
        all_tasks = [task for several in tasks.values() for task in several]
        try:
            await asyncio.gather(*all_tasks)
        finally:
            self._waiting -= count
            for task in all_tasks:
                task.cancel()
        found = {name: [task.result() for task in several] for name, several in tasks.items()}
        return {name: [_timed(item, decoding) for item in several] for name, several in found.items()}

    async def _fetch_item(
        self, modality: str, item: Any, number: tuple[int, int], budget: Budget, slots: asyncio.Semaphore, param: str
    ) -> Any:
        if not _needs_fetching(modality, item):
            return item
        try:
            return await self._read(item, budget, slots)
        except QuireError as error:
            raise with_item_number(error, modality, *number, param) from error

    async def _read(self, item: Any, budget: Budget, slots: asyncio.Semaphore) -> MediaBytes:
        if isinstance(item, bytes | bytearray):
            budget.consume(len(item))
            return MediaBytes(data=bytes(item))
        if isinstance(item, os.PathLike) or (isinstance(item, str) and not _is_url(item)):
            return MediaBytes(data=await self.run(lambda: read_path(item, budget)))
        link = item if isinstance(item, MediaURL) else MediaURL(url=item)
        return MediaBytes(data=await self._read_url(link.url, budget, slots), low_detail=link.low_detail)

    async def _read_url(self, url: str, budget: Budget, slots: asyncio.Semaphore) -> bytes:
        url = url.strip()
        scheme = url.partition(":")[0].lower()
        if scheme in ("http", "https"):
            async with slots:
                return await self._fetcher.fetch(url, budget)
        if scheme == "data":
            return await self.run(lambda: read_data_url(url, budget))
        if scheme == "file":
            return await self.run(lambda: read_file_url(url, self._limits.allowed_folder, budget))
        raise BadRequest(f"A media URL must begin with http:, https:, data: or file:; got {url[:40]!r}.")


def with_item_number(error: QuireError, modality: str, number: int, count: int, param: str) -> QuireError:
    """The error of one of `count` items, with the number of the item in its message."""
    message = f"{modality} {number + 1} of {count}: {error.message}" if count > 1 else error.message
    return type(error)(message, error.param or param)


def _timed(item: Any, decoding: DecodingTime) -> Any:
    return replace(item, time=decoding) if isinstance(item, MediaBytes) else item


def _needs_fetching(modality: str, item: Any) -> bool:
    """Whether an item must still be fetched or read."""
    return isinstance(item, MediaURL) or (
        modality in MODALITIES and isinstance(item, str | bytes | bytearray | os.PathLike)
    )


def _is_url(text: str) -> bool:
    return "://" in text or text[:5].lower() == "data:"


def _run(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return asyncio.run(make())
