"""From what users name or hold to decoded media: fetches, reads, decodes, each within the limits of one model.

    Linked ─▶ Encoded ─▶ picture, `Audio` or `Video`

Items of modalities that it does not know pass as they are. It knows no prompts, no mappers and no models.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from quire.errors import BadRequest, Overloaded, QuireError
from quire.media.addresses import Resolve
from quire.media.fetch import Fetcher
from quire.media.items import Encoded, Linked
from quire.media.large_images import CAN_SHARE, LargeImages
from quire.media.limits import MODALITIES, Budget, DecodingTime, MediaLimits
from quire.media.local import read_data_url, read_file_url, read_path
from quire.media.weights import LIGHT_PIXELS, is_heavy

T = TypeVar("T")

MAX_FETCHES = 16
"""Items fetched from elsewhere at once; others wait in line."""

MAX_WAITING = 1024
"""Items in line; with more, prompts are refused."""

NUM_THREADS = max(2, min(8, os.cpu_count() or 2))
"""That decode and map at once."""

NUM_HEAVY_THREADS = max(1, NUM_THREADS // 2)
"""That decode and map large images, audio and video, so that small images don't wait for these."""

MAX_HEAVY_WAITING = 32
"""Prompts with such media that wait for a thread; more are refused."""

NUM_LOOKUPS = 8
"""Threads that look up names of hosts, which may take long."""


class Intake:
    """Takes in the media of one model's prompts. Threads and event loops may share it.

    resolve: how names of hosts are looked up, None = as the system does.
    """

    def __init__(self, limits: MediaLimits | None = None, resolve: Resolve | None = None) -> None:
        self._limits = limits or MediaLimits()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="quire-media")
        self._heavy = ThreadPoolExecutor(NUM_HEAVY_THREADS, thread_name_prefix="quire-large-media")
        self._num_heavy = 0
        self._large = LargeImages(self._limits.timeout_s)
        self._lookups = ThreadPoolExecutor(NUM_LOOKUPS, thread_name_prefix="quire-names")
        self._fetcher = Fetcher(self._limits, self._lookups, resolve)
        self._places = asyncio.Semaphore(MAX_FETCHES)
        self._waiting = 0

    def check_count(self, modality: str, count: int, param: str) -> None:
        """Raises `BadRequest` for more items of a modality than a prompt may have."""
        most = self._limits.most(modality)
        if count > most:
            raise BadRequest(
                f"At most {most} {modality} item(s) may be given in one prompt (--limit-mm-per-prompt); got {count}.",
                param,
            )

    async def fetched(self, items: Mapping[str, Sequence[Any]], param: str) -> dict[str, list[Any]]:
        """The items by modality with `Encoded` in the place of whatever has to be fetched or read.

        `Linked` items are fetched; strings, paths and bytes are URLs, files and the bytes of files. Raises
        `BadRequest`, TooLarge, Unprocessable, each saying which item; Overloaded when too many are waiting.
        """
        return await self._fetched(items, param, self._places)

    def fetched_now(self, items: Mapping[str, Sequence[Any]], param: str) -> dict[str, list[Any]]:
        """The same for callers who wait, with or without an event loop in their thread."""
        if not any(_is_elsewhere(name, item) for name, several in items.items() for item in several):
            return {name: list(several) for name, several in items.items()}
        with ThreadPoolExecutor(1) as thread:  # whose event loop is nobody else's
            return thread.submit(_run, lambda: self._fetched(items, param, asyncio.Semaphore(MAX_FETCHES))).result()

    async def run(self, work: Callable[[], T], items: Mapping[str, Sequence[Any]] | None = None) -> T:
        """`work` (decoding and mapping of `items`, by modality) in one of the threads.

        Raises TooLarge for images of too many pixels together, Overloaded when too much heavy work waits.
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

    def decoded(self, modality: str, item: Any) -> Any:
        """What a mapper takes: an RGB picture of Pillow, `Audio` or `Video`; others as they are. It blocks."""
        if modality not in MODALITIES:
            return item
        from quire.media import audio, images, video  # import numpy, which a server that takes text can do without

        if isinstance(item, Encoded):
            limits = replace(self._limits, timeout_s=min(self._limits.timeout_s, item.time.left_s))
            with item.time.counted():
                return self._decoded(modality, item, limits)
        if modality == "image":
            return images.as_image(item, self._limits.max_image_pixels)
        return audio.as_audio(item, self._limits) if modality == "audio" else video.as_video(item, self._limits)

    def _decoded(self, modality: str, item: Encoded, limits: MediaLimits) -> Any:
        from quire.media import audio, images, video

        if modality == "image":
            pixels = limits.max_image_pixels
            if CAN_SHARE and LIGHT_PIXELS < images.num_pixels(item.data) <= pixels:
                return self._large.decode(item.data, pixels, item.low, limits.timeout_s)
            return images.decode_image(item.data, pixels, item.low)
        if modality == "audio":
            return audio.decode_audio(item.data, limits)
        return video.decode_video(item.data, limits)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False)
        self._heavy.shutdown(wait=False)
        self._large.close()
        self._lookups.shutdown(wait=False)

    async def _fetched(
        self, items: Mapping[str, Sequence[Any]], param: str, places: asyncio.Semaphore
    ) -> dict[str, list[Any]]:
        count = sum(map(len, items.values()))
        if self._waiting + count > MAX_WAITING:
            raise Overloaded("Too many media are being fetched; try again later.", param)
        self._waiting += count
        budget, decoding = Budget(self._limits.max_bytes), DecodingTime(self._limits.decode_s)
        tasks = {
            name: [
                asyncio.ensure_future(self._one(name, item, (i, len(several)), budget, places, param))
                for i, item in enumerate(several)
            ]
            for name, several in items.items()
        }
        every = [task for several in tasks.values() for task in several]
        try:
            await asyncio.gather(*every)
        finally:
            self._waiting -= count
            for task in every:
                task.cancel()
        found = {name: [task.result() for task in several] for name, several in tasks.items()}
        return {name: [_timed(item, decoding) for item in several] for name, several in found.items()}

    async def _one(
        self, modality: str, item: Any, place: tuple[int, int], budget: Budget, places: asyncio.Semaphore, param: str
    ) -> Any:
        if not _is_elsewhere(modality, item):
            return item
        try:
            return await self._encoded(item, budget, places)
        except QuireError as error:
            raise numbered(error, modality, *place, param) from error

    async def _encoded(self, item: Any, budget: Budget, places: asyncio.Semaphore) -> Encoded:
        if isinstance(item, bytes | bytearray):
            budget.take(len(item))
            return Encoded(data=bytes(item))
        if isinstance(item, os.PathLike) or (isinstance(item, str) and not _is_url(item)):
            return Encoded(data=await self.run(lambda: read_path(item, budget)))
        link = item if isinstance(item, Linked) else Linked(url=item)
        return Encoded(data=await self._linked(link.url, budget, places), low=link.low)

    async def _linked(self, url: str, budget: Budget, places: asyncio.Semaphore) -> bytes:
        url = url.strip()
        scheme = url.partition(":")[0].lower()
        if scheme in ("http", "https"):
            async with places:
                return await self._fetcher.fetch(url, budget)
        if scheme == "data":
            return await self.run(lambda: read_data_url(url, budget))
        if scheme == "file":
            return await self.run(lambda: read_file_url(url, self._limits.allowed_folder, budget))
        raise BadRequest(f"A media URL must begin with http:, https:, data: or file:; got {url[:40]!r}.")


def numbered(error: QuireError, modality: str, number: int, count: int, param: str) -> QuireError:
    """The error of an item of several, which says which of them it was."""
    message = f"{modality} {number + 1} of {count}: {error.message}" if count > 1 else error.message
    return type(error)(message, error.param or param)


def _timed(item: Any, decoding: DecodingTime) -> Any:
    return replace(item, time=decoding) if isinstance(item, Encoded) else item


def _is_elsewhere(modality: str, item: Any) -> bool:
    """Whether an item is yet to be fetched or read."""
    return isinstance(item, Linked) or (
        modality in MODALITIES and isinstance(item, str | bytes | bytearray | os.PathLike)
    )


def _is_url(text: str) -> bool:
    return "://" in text or text[:5].lower() == "data:"


def _run(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return asyncio.run(make())
