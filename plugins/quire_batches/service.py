"""The files and batches of one server: opens the folder, keeps the limits, and removes what has expired."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from quire.errors import ConfigError, NotFound, Overloaded, TooLarge
from quire.plugin import RouterContext
from quire_batches.folder import Folder
from quire_batches.records import RUNNING, Result, StoredBatch, StoredFile
from quire_batches.runner import Runner
from quire_batches.store import BatchStore

log = logging.getLogger(__name__)

T = TypeVar("T")

SWEEP_S = 60.0
"""Pause between two removals of what has expired."""

DAY_S = 86_400


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """The options of the plugin. retention_s: of files without another end, and of ended batches."""

    root: Path
    max_file_bytes: int
    max_total_bytes: int
    max_files: int
    max_lines: int
    max_batches: int
    retention_s: int
    concurrency: int

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> BatchLimits:
        """Check the values of the options. Raises ConfigError."""
        for name, value in options.items():
            if isinstance(value, int) and value < 1:
                raise ConfigError(f"--batches.{name} must be at least 1; got {value}.")
        folder = options["folder"]
        return cls(
            root=Path(folder).expanduser() if folder else Path.home() / ".cache" / "quire" / "batches",
            retention_s=options["retention_days"] * DAY_S,
            **{name: value for name, value in options.items() if name not in ("folder", "retention_days")},
        )


class BatchService:
    """Opens its folder at the first upload, or at the start if there is one.

    `folder`, `store` and `runner` exist once `open` has returned True.
    """

    folder: Folder
    store: BatchStore
    runner: Runner

    def __init__(self, context: RouterContext, limits: BatchLimits) -> None:
        self.limits, self._context = limits, context
        self._is_open = False
        self._opening = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")  # the store's
        self._uploading = 0
        self._sweeping: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """Continue unfinished batches; at the end, stop them."""
        try:
            await self.open()
        except (OSError, Overloaded, sqlite3.Error) as error:
            log.warning("batches are not continued: %s", error)
        try:
            yield
        finally:
            if self._is_open:
                await self._close()
            self._thread.shutdown()

    async def open(self, create: bool = False) -> bool:
        """Whether there is a folder, which is then open. create: make it. Raises `Overloaded` and OSError."""
        async with self._opening:
            if not self._is_open and (create or await asyncio.to_thread(self.limits.root.is_dir)):
                await self.call(self._open)
                self._is_open = True
                self.runner = Runner(self, self._context)
                for batch in await self.call(self.store.unfinished):
                    self.runner.start(batch.id)
                self._sweeping = asyncio.create_task(self._sweep())
        return self._is_open

    def _open(self) -> None:
        self.folder = Folder(self.limits.root)
        try:
            self.store = BatchStore(self.folder.database)
        except BaseException:
            self.folder.close()
            raise
        self.folder.remove_all_but({file.id for file in self.store.files.all()})

    async def _close(self) -> None:
        assert self._sweeping is not None, "it began with the folder"
        self._sweeping.cancel()
        await asyncio.gather(self._sweeping, return_exceptions=True)
        await self.runner.close()
        await self.call(self.store.close)
        self.folder.close()

    async def call(self, work: Callable[[], T]) -> T:
        """The result of `work` in the thread of the store."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def now(self) -> float:
        """The time in Unix seconds."""
        return time.time()

    def new_id(self, prefix: str) -> str:
        return prefix + uuid.uuid4().hex

    def new_file(
        self, owner: str, purpose: str, filename: str, file_id: str, num_bytes: int, expires_s: int | None
    ) -> StoredFile:
        """A file that is created now. expires_s: its lifetime; None: the server's."""
        now = int(self.now())
        return StoredFile(
            id=file_id,
            owner=owner,
            purpose=purpose,
            filename=filename,
            num_bytes=num_bytes,
            created_at=now,
            expires_at=now + (self.limits.retention_s if expires_s is None else expires_s),
        )

    # --- files --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def room_for(self, num_bytes: int) -> AsyncIterator[None]:
        """Keeps room for a file that is being uploaded. Raises `TooLarge` if there is none."""
        used, count = await self.call(lambda: (self.store.num_bytes, len(self.store.files.all())))
        if used + self._uploading + num_bytes > self.limits.max_total_bytes:
            raise TooLarge(f"All files may have {self.limits.max_total_bytes} bytes, of which {used} are used.")
        if count >= self.limits.max_files:
            raise TooLarge(f"The server keeps at most {self.limits.max_files} files.")
        self._uploading += num_bytes
        try:
            yield
        finally:
            self._uploading -= num_bytes

    async def file(self, owner: str, file_id: str) -> StoredFile:
        """A file of a client. Raises `NotFound`, also if it has expired."""
        found = await self.call(lambda: self.store.files.get(file_id)) if await self.open() else None
        if found is None or found.owner != owner or self._has_expired(found):
            raise NotFound(f"There is no file with the id {file_id!r:.80}.", "file_id")
        return found

    def _has_expired(self, file: StoredFile) -> bool:
        return file.expires_at is not None and file.expires_at <= self.now()

    def remove_file(self, file: StoredFile) -> bool:
        """Remove a file, unless an unfinished batch reads it. In the thread of the store."""
        if any(batch.input_file_id == file.id for batch in self.store.unfinished()):
            return False
        self.store.files.remove(file.id)
        self.folder.remove(file.id)
        return True

    # --- batches ------------------------------------------------------------------------------------

    async def batch(self, batch_id: str) -> StoredBatch:
        """A batch that exists."""
        found = await self.call(lambda: self.store.batches.get(batch_id))
        assert found is not None, "only ended batches are removed"
        return found

    async def batch_of(self, owner: str, batch_id: str) -> StoredBatch:
        """A batch of a client. Raises `NotFound`."""
        found = await self.call(lambda: self.store.batches.get(batch_id)) if await self.open() else None
        if found is None or found.owner != owner:
            raise NotFound(f"There is no batch with the id {batch_id!r:.80}.", "batch_id")
        return found

    async def add(self, batch: StoredBatch) -> None:
        """Store a new batch and begin it. Raises `Overloaded` if there are too many, `NotFound` without its file."""

        def add() -> None:
            if len(self.store.unfinished()) >= self.limits.max_batches:
                raise Overloaded(f"{self.limits.max_batches} batches have not ended, the most allowed.")
            if self.store.files.get(batch.input_file_id) is None:  # it was removed meanwhile
                raise NotFound(f"There is no file with the id {batch.input_file_id!r}.", "input_file_id")
            self.store.batches.add(batch)

        await self.call(add)
        self.runner.start(batch.id)

    async def update(self, batch_id: str, change: Callable[[StoredBatch], StoredBatch]) -> StoredBatch:
        """Replace a batch by what `change` makes of it."""
        return await self.call(lambda: self.store.update(batch_id, change))

    async def save_results(self, results: Sequence[Result]) -> None:
        """Store answers. Raises `TooLarge` if they do not fit."""

        def save() -> None:
            num_bytes = sum(len(result.content) for result in results)
            if self.store.num_bytes + num_bytes > self.limits.max_total_bytes:
                raise TooLarge(f"The answers do not fit in the {self.limits.max_total_bytes} bytes of all files.")
            self.store.add_results(results)

        await self.call(save)

    # --- retention ----------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        while True:
            try:
                await self.call(self._remove_expired)
            except (OSError, sqlite3.Error):
                log.exception("expired files are not removed")
            await asyncio.sleep(SWEEP_S)

    def _remove_expired(self) -> None:
        for file in self.store.files.all():
            if self._has_expired(file):
                self.remove_file(file)
        for batch in self.store.batches.all():
            if batch.status not in RUNNING and batch.created_at + self.limits.retention_s <= self.now():
                self.store.batches.remove(batch.id)
