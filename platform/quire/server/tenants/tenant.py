"""What the key file says of tenants and keys, and what follows for a request with a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property

from quire.server.tenants.scopes import ADMIN, DEFAULT_SCOPES, LOAD

EVERYTHING = ("*",)


@dataclass(frozen=True, kw_only=True)
class TenantLimits:
    """How much a tenant, or one key, may use; None: without limit.

    concurrent_requests: requests that are answered at once; queued_requests: further ones that wait for these, 0: they
    are refused. max_context: tokens of prompt and answer. max_media_bytes: of all media of a prompt.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    queued_requests: int = 0
    max_context: int | None = None
    max_media_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a tenant, or one key, may do. models, adapters: globs over names.

    priority_ceiling: the smallest `priority` that a request gets; smaller ones run first.
    """

    scopes: frozenset[str] = DEFAULT_SCOPES
    models: tuple[str, ...] = EVERYTHING
    adapters: tuple[str, ...] = EVERYTHING
    priority_ceiling: int = 0


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """weight: its share of the engine beside other tenants. share_cache: its prefixes are in the prefix cache that all
    such tenants share. monthly_tokens: budget of a calendar month (UTC)."""

    name: str
    access: Access = Access()
    limits: TenantLimits = TenantLimits()
    weight: float = 1.0
    share_cache: bool = False
    monthly_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of a tenant. digest: SHA-256 of the key, hexadecimal. scopes: None = those of the tenant. The key may do
    what both it and its tenant may."""

    id: str
    tenant: Tenant
    digest: str
    expires: datetime | None = None
    scopes: frozenset[str] | None = None
    access: Access = Access()
    limits: TenantLimits = TenantLimits()

    @property
    def is_narrow(self) -> bool:
        """Whether it may use fewer models or adapters than its tenant."""
        return (self.access.models, self.access.adapters) != (EVERYTHING, EVERYTHING)


@dataclass(frozen=True)
class Caller:
    """Who sends a request: a tenant, with a key; without one for work that goes on after the request of a key."""

    tenant: Tenant
    key: Key | None = None

    @cached_property
    def scopes(self) -> frozenset[str]:
        """All that it may do."""
        scopes = self.tenant.access.scopes
        if self.key is not None and self.key.scopes is not None:
            scopes = self.key.scopes if ADMIN in scopes else scopes & self.key.scopes
        return scopes | {LOAD} if ADMIN in scopes else scopes

    def may(self, scope: str) -> bool:
        return scope in self.scopes or ADMIN in self.scopes

    def may_use_model(self, name: str) -> bool:
        """Whether it may use a model by this name or alias."""
        return ADMIN in self.scopes or all(_matches(name, access.models) for access in self._accesses)

    def may_use_adapter(self, name: str) -> bool:
        return ADMIN in self.scopes or all(_matches(name, access.adapters) for access in self._accesses)

    @cached_property
    def priority_ceiling(self) -> int:
        return max(access.priority_ceiling for access in self._accesses)

    @cached_property
    def max_context(self) -> int | None:
        return _least(limits.max_context for limits in self.limits)

    @cached_property
    def max_media_bytes(self) -> int | None:
        return _least(limits.max_media_bytes for limits in self.limits)

    @property
    def limits(self) -> tuple[TenantLimits, ...]:
        return (self.tenant.limits,) if self.key is None else (self.tenant.limits, self.key.limits)

    @property
    def _accesses(self) -> tuple[Access, ...]:
        return (self.tenant.access,) if self.key is None else (self.tenant.access, self.key.access)


NameFilter = Callable[[str], bool]
"""Whether the sender of the current request may use a name."""


def every_name(name: str) -> bool:
    return True


def _matches(name: str, globs: tuple[str, ...]) -> bool:
    return globs == EVERYTHING or any(fnmatchcase(name, glob) for glob in globs)


def _least(limits: Iterable[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
