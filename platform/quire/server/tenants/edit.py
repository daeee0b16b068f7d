"""Edits a key file: makes and revokes keys. The file is replaced in one step, so that no reader sees half of it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from quire.errors import ConfigError
from quire.server.tenants.key_file import HASH, KeyFile, parse

KEY_PREFIX = "sk-quire-"
KEY_BYTES = 32


@dataclass(frozen=True)
class NewKey:
    """A key that was made. secret: what clients send; it is stored nowhere."""

    id: str
    secret: str


def create_key(path: Path, tenant: str, fields: Mapping[str, Any], key_id: str | None = None) -> NewKey:
    """Add a key to the file, and the file or the tenant if there is none. fields: further fields of the key.

    Raises `ConfigError`, and then changes nothing.
    """
    secret = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    made = NewKey(key_id or secrets.token_hex(4), secret)
    with _edited(path) as root:
        tenants = root.setdefault("tenants", {})
        if tenant not in tenants:
            tenants[tenant] = {}
        entry = {"id": made.id, "tenant": tenant, "hash": HASH + hash_of(secret), **fields}
        root["keys"] = [*(root.get("keys") or []), entry]
    return made


def revoke_key(path: Path, key_id: str) -> None:
    """Remove a key from the file. Raises `ConfigError`, also for an unknown id."""
    with _edited(path) as root:
        keys = root.get("keys") or []
        root["keys"] = [key for key in keys if str(key["id"]) != key_id]
        if len(root["keys"]) == len(keys):
            raise ConfigError(f"{path} has no key with the id {key_id!r}.")


def read_file(path: Path) -> KeyFile:
    """The contents of a key file. Raises `ConfigError`."""
    return parse(_text(path), str(path))


def hash_of(secret: str) -> str:
    """SHA-256 of a key, hexadecimal. A slow hash protects passwords, because these can be guessed; 256 random bits
    cannot, and a server hashes the key of every request."""
    return hashlib.sha256(secret.encode()).hexdigest()


@contextmanager
def _edited(path: Path) -> Iterator[dict[str, Any]]:
    """The file's contents, which are written when the block ends without an error. Comments at its head are kept."""
    path = path.resolve()  # the file behind a link is replaced, not the link
    with _locked(path):
        text = _text(path) if path.exists() else ""
        parse(text, str(path))
        root = yaml.safe_load(text) or {}
        for name in ("tenants", "keys"):
            if root.get(name) is None:
                root.pop(name, None)
        yield root
        head = "".join(_head(text))
        new = head + yaml.safe_dump(root, sort_keys=False, allow_unicode=True)
        parse(new, str(path))
        _replace(path, new)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """While no other process edits the file. The lock is on a file beside it, because the file itself is replaced."""
    try:
        lock = os.open(path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be edited: {error}.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _head(text: str) -> Iterator[str]:
    for line in text.splitlines(keepends=True):
        if line.strip() and not line.startswith("#"):
            return
        yield line


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error


def _replace(path: Path, text: str) -> None:
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    try:
        new = partial(tempfile.NamedTemporaryFile, "w", encoding="utf-8", prefix=f".{path.name}.", delete=False)
        with new(dir=path.parent) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(file.name, mode)
        os.replace(file.name, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}.") from error
