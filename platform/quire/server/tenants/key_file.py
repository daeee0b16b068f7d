"""Reads the text of a key file: tenants, and the keys that belong to them.

    tenants:
      acme:
        weight: 2
        tokens_per_minute: 200k
    keys:
      - id: ci
        tenant: acme
        hash: sha256:5e88…

A file with any mistake is refused as a whole, with a sentence that names the place.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime
from typing import Any

import yaml

from quire.errors import ConfigError
from quire.server.tenants.scopes import SCOPES
from quire.server.tenants.tenant import Access, Key, Tenant, TenantLimits
from quire.settings.model_values import whole_number
from quire.settings.near_names import near_name

HASH = "sha256:"
"""How the hash of a key begins."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of tenants and ids of keys. Without a colon, so that no tenant is called like an address or a digest."""

LIMIT_FIELDS = tuple(f.name for f in fields(TenantLimits))
ACCESS_FIELDS = ("models", "adapters", "priority_ceiling", "scopes")
TENANT_FIELDS = ("weight", "share_cache", "monthly_tokens", *ACCESS_FIELDS, *LIMIT_FIELDS)
KEY_FIELDS = ("id", "tenant", "hash", "expires", *ACCESS_FIELDS, *LIMIT_FIELDS)

MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
LOWEST_PRIORITY = -(2**31)


@dataclass(frozen=True, kw_only=True)
class KeyFile:
    """tenants: by name. keys: by digest, hexadecimal."""

    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    keys: Mapping[str, Key] = field(default_factory=dict)


def parse(text: str, name: str) -> KeyFile:
    """The contents of a key file. name: for errors. Raises `ConfigError`."""
    try:
        root = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        # Only the parser's own words: the text around the mistake may contain a key.
        raise ConfigError(
            f"{name}{line}: invalid YAML: {getattr(error, 'problem', None) or 'it is no value'}"
        ) from None
    at = _Place(name)
    top = at.map({} if root is None else root, ("tenants", "keys"))
    tenants = {}
    for tenant, values in at.below("tenants").map(top.get("tenants") or {}).items():
        tenants[str(tenant)] = _tenant(at.below(f"tenants.{tenant}"), str(tenant), values)
    keys: dict[str, Key] = {}
    ids: set[str] = set()
    for number, values in enumerate(at.below("keys").list(top.get("keys") or [])):
        place = at.below(f"keys[{number}]")
        key = _key(place, values, tenants)
        if key.id in ids or key.digest in keys:
            raise place.error(f"the id or hash of the key `{key.id}` is that of another key")
        ids.add(key.id)
        keys[key.digest] = key
    return KeyFile(tenants=tenants, keys=keys)


@dataclass(frozen=True)
class _Place:
    """A place in the file, for errors and checks."""

    path: str

    def below(self, name: str) -> _Place:
        return _Place(f"{self.path}: {name}")

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.path}: {problem}.")

    def map(self, value: Any, known: Sequence[str] = ()) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error("it must map names to values")
        for name in value if known else ():
            if name not in known:
                near = near_name(str(name), known)
                raise self.error(f"there is no field `{name!s:.80}`" + (f"; did you mean `{near}`?" if near else ""))
        return value

    def list(self, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise self.error("it must be a list")
        return value

    def field(self, values: Mapping[str, Any], name: str, read: Callable[[Any], Any], default: Any) -> Any:
        """The value of a field; `read` raises ValueError with what is needed instead."""
        if values.get(name) is None:
            return default
        try:
            return read(values[name])
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise self.error(f"`{name}` {error}") from None


def _tenant(at: _Place, name: str, given: Any) -> Tenant:
    if not NAME.fullmatch(name):
        raise at.error("a name has up to 64 letters, digits and . _ -, the first a letter or digit")
    values = at.map({} if given is None else given, TENANT_FIELDS)
    access, scopes = _access(at, values, 0), at.field(values, "scopes", _scopes, None)
    return Tenant(
        name=name,
        access=access if scopes is None else Access(**{**_as_map(access), "scopes": scopes}),
        limits=_limits(at, values),
        weight=at.field(values, "weight", _weight, 1.0),
        share_cache=at.field(values, "share_cache", _switch, False),
        monthly_tokens=at.field(values, "monthly_tokens", _count, None),
    )


def _key(at: _Place, given: Any, tenants: Mapping[str, Tenant]) -> Key:
    values = at.map(given, KEY_FIELDS)
    tenant = tenants.get(str(values.get("tenant")))
    if tenant is None:
        raise at.error(f"`tenant` must name a tenant of this file; got {values.get('tenant')!r:.80}")
    key_id = str(values.get("id") or "")
    if not NAME.fullmatch(key_id):
        raise at.error("`id` must have up to 64 letters, digits and . _ -, the first a letter or digit")
    return Key(
        id=key_id,
        tenant=tenant,
        digest=at.field(values, "hash", _digest, None) or _missing(at, "hash"),
        expires=at.field(values, "expires", _moment, None),
        scopes=at.field(values, "scopes", _scopes, None),
        access=_access(at, values, LOWEST_PRIORITY),
        limits=_limits(at, values),
    )


def _missing(at: _Place, name: str) -> str:
    raise at.error(f"`{name}` is missing")


def _access(at: _Place, values: Mapping[str, Any], ceiling: int) -> Access:
    globs = {name: at.field(values, name, _texts, None) for name in ("models", "adapters")}
    priority = at.field(values, "priority_ceiling", _integer, ceiling)
    return Access(priority_ceiling=priority, **{name: value for name, value in globs.items() if value is not None})


def _as_map(access: Access) -> dict[str, Any]:
    return {f.name: getattr(access, f.name) for f in fields(access)}


def _limits(at: _Place, values: Mapping[str, Any]) -> TenantLimits:
    given = {
        name: at.field(values, name, _integer if name == "queued_requests" else _count, None) for name in LIMIT_FIELDS
    }
    if (given["queued_requests"] or 0) < 0:
        raise at.error("`queued_requests` must be at least 0")
    if given["queued_requests"] and given["concurrent_requests"] is None:
        raise at.error("`queued_requests` needs `concurrent_requests`")
    return TenantLimits(**{name: value for name, value in given.items() if value is not None})


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("must be a whole number")
    return whole_number(str(value))


def _count(value: Any) -> int:
    count = _integer(value)
    if count < 1:
        raise ValueError("must be above 0")
    return count


def _weight(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not MIN_WEIGHT <= value <= MAX_WEIGHT:
        raise ValueError(f"must be a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
    return float(value)


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("must be a list of texts")
    return tuple(value)


def _scopes(value: Any) -> frozenset[str]:
    scopes = frozenset(_texts(value))
    if unknown := sorted(scopes - SCOPES.keys()):
        raise ValueError(f"has no `{unknown[0]:.80}`; there are {', '.join(SCOPES)}")
    return scopes


def _digest(value: Any) -> str:
    digest = value.removeprefix(HASH) if isinstance(value, str) and value.startswith(HASH) else ""
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError(f"must be {HASH} and 64 hexadecimal digits")
    return digest


def _moment(value: Any) -> datetime:
    """A date means its beginning in UTC; so does a time without a zone."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise ValueError("must be a date or a time, such as 2027-01-31")
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value
