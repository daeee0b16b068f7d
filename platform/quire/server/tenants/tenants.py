"""The key file in force: finds the key of a request, and counts what each tenant uses."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from quire.errors import ConfigError, Forbidden, RateLimited, Unauthorized
from quire.server.tenants.key_file import NAME, KeyFile, parse
from quire.server.tenants.meter import Meter
from quire.server.tenants.spent import SUFFIX, SpentFile, SpentTokens
from quire.server.tenants.tenant import Caller, TenantLimits
from quire.server.tenants.ticket import Ticket
from quire.types.request import BACKGROUND

log = logging.getLogger("quire.server")

POLL_S = 1.0
"""Seconds between looks at the key file, and between writes of spent tokens."""

MAX_FILE_BYTES = 64 << 20

NO_LIMITS = TenantLimits()


class Tenants:
    """For one event loop. path: the key file. clock: seconds, monotonic. now: the time of day, in UTC.

    Raises `ConfigError` if the file cannot be used.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        spent: SpentTokens | None = None,
    ) -> None:
        self._path, self._clock, self._now = path, clock, now
        self._meters: dict[tuple[str, str], Meter] = {}
        self._callers: dict[str, Caller] = {}  # by the id of the key
        self._seen = _signature(path)
        self._file = self._read()
        self._anchor = (now(), clock())
        try:
            self._spent: SpentTokens = spent or SpentFile(path.with_name(path.name + SUFFIX))
        except sqlite3.Error as error:
            raise ConfigError(f"{path}{SUFFIX} cannot be read: {error}.") from error

    # --- the file ----------------------------------------------------------------------------------

    def reload(self) -> bool:
        """Read the key file again. With a mistake in it the old one stays in force and the log says why: False."""
        self._seen = _signature(self._path)
        try:
            file = self._read()
        except ConfigError as error:
            log.error("the key file has a mistake, and the one before stays in force: %s", error.message)
            return False
        self._apply(file)
        return True

    async def watch(self) -> None:
        """Reload when the file changes, and store spent tokens; runs until it is cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            await asyncio.to_thread(self._spent.flush)
            seen = await asyncio.to_thread(_signature, self._path)
            if seen == self._seen:
                continue
            self._seen = seen
            try:
                self._apply(await asyncio.to_thread(self._read))
            except ConfigError as error:
                log.error("the key file has a mistake, and the one before stays in force: %s", error.message)

    def close(self) -> None:
        """Store the tokens that were spent."""
        self._spent.flush()

    def _read(self) -> KeyFile:
        try:
            if self._path.stat().st_size > MAX_FILE_BYTES:
                raise ConfigError(f"{self._path} has more than {MAX_FILE_BYTES} bytes.")
            text = self._path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._path} cannot be read: {error}.") from error
        return parse(text, str(self._path))

    def _apply(self, file: KeyFile) -> None:
        self._file = file
        self._callers.clear()
        self._anchor = (self._now(), self._clock())
        known = {key.id: key for key in file.keys.values()}
        for (tenant, key_id), meter in list(self._meters.items()):
            owner = known.get(key_id) if key_id else file.tenants.get(tenant)
            if owner is None:
                del self._meters[tenant, key_id]
            else:
                meter.configure(owner.limits)
        log.info("the key file has %d keys of %d tenants", len(file.keys), len(file.tenants))

    # --- keys --------------------------------------------------------------------------------------

    @property
    def time(self) -> datetime:
        """The time of day, read when the file was and counted on by the monotonic clock: setting the machine's clock
        neither revives a key nor gives back a budget."""
        read_at, clock_at = self._anchor
        return read_at + timedelta(seconds=max(0.0, self._clock() - clock_at))

    def find(self, digest: bytes) -> Caller | None:
        """The sender of a request with a key of this SHA-256 digest; None for an unknown key.

        Raises `Unauthorized` for a key that has expired. The time that a lookup takes depends on digests alone, and
        what is learned of the digest of a key tells nothing of the key.
        """
        key = self._file.keys.get(digest.hex())
        if key is None:
            return None
        if key.expires is not None and key.expires <= self.time:
            raise Unauthorized("The API key has expired.")
        caller = self._callers.get(key.id)
        if caller is None:
            caller = self._callers[key.id] = Caller(key.tenant, key)
        return caller

    def find_client(self, client: str) -> Caller | None:
        """The tenant that a client's name stands for, for work without a key; None for another client.

        Raises `Forbidden` for the name of a tenant that is no longer in the file.
        """
        name = client.removeprefix(BACKGROUND)
        if not NAME.fullmatch(name):
            return None
        if name not in self._file.tenants:
            raise Forbidden(f"There is no tenant `{name}` any more.")
        return Caller(self._file.tenants[name])

    # --- admission ---------------------------------------------------------------------------------

    def ticket(self, caller: Caller, meters: tuple[Meter, ...]) -> Ticket:
        """The ticket of a request whose tokens count for `meters`, and for the budget of the month."""
        return Ticket(caller, meters, lambda tokens: self._spent.add(caller.tenant.name, self._month, tokens))

    def meters(self, caller: Caller) -> tuple[Meter, ...]:
        """The meters of a tenant and, if it has limits of its own, of the key."""
        tenant, key = caller.tenant, caller.key
        meters = [self._meter(tenant.name, "", tenant.limits)]
        if key is not None and key.limits != NO_LIMITS:
            meters.append(self._meter(tenant.name, key.id, key.limits))
        return tuple(meters)

    def check_budget(self, caller: Caller) -> None:
        """Raise `RateLimited` if the tenant has used its tokens of this month."""
        tenant = caller.tenant
        if tenant.monthly_tokens is None or self._spent.spent(tenant.name, self._month) < tenant.monthly_tokens:
            return
        now = self.time
        next_month = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
        raise RateLimited(
            f"The tenant `{tenant.name}` has used its {tenant.monthly_tokens} tokens of {self._month}.",
            (next_month - now).total_seconds(),
        )

    @property
    def _month(self) -> str:
        return f"{self.time:%Y-%m}"

    def _meter(self, tenant: str, key_id: str, limits: TenantLimits) -> Meter:
        meter = self._meters.get((tenant, key_id))
        if meter is None:
            owner = f"API key `{key_id}`" if key_id else f"tenant `{tenant}`"
            meter = self._meters[tenant, key_id] = Meter(owner, limits, self._clock)
        return meter


@asynccontextmanager
async def watched(tenants: Tenants | None) -> AsyncIterator[None]:
    """While the server runs: follows the key file, and in the end stores the tokens that were spent."""
    if tenants is None:
        yield
        return
    watching = asyncio.create_task(tenants.watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.to_thread(tenants.close)


def _signature(path: Path) -> tuple[int, ...]:
    with suppress(OSError):
        stat = path.stat()
        return (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    return ()
