"""A server with a key file, without an engine: keys are called by their ids, and the clock is the test's."""

from __future__ import annotations

from datetime import UTC, datetime

import yaml
from fake_client import PretendClient, http, pretend_app

from quire.server.tenants.edit import hash_of
from quire.server.tenants.tenants import Tenants
from quire.settings.server_config import ServerConfig

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


BODY = {"prompt": "abcd", "max_tokens": 3}
"""Uses 7 tokens."""


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def secret_of(key_id: str) -> str:
    return f"secret-of-{key_id}"


def headers_of(key_id: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret_of(key_id)}"}


def write_keys(path, tenants, keys) -> None:
    """keys: fields by id, with the tenant; the secret is `secret_of` the id."""
    entries = [{"id": name, "hash": f"sha256:{hash_of(secret_of(name))}", **fields} for name, fields in keys.items()]
    path.write_text(yaml.safe_dump({"tenants": tenants, "keys": entries}))


class TenantRig:
    """app: of a server with this key file. tenants: what it knows of the file; its clock is `clock`."""

    def __init__(self, folder, tenants, keys, engine=None, config=None, monkeypatch=None, **more) -> None:
        self.path = folder / "keys.yaml"
        write_keys(self.path, tenants, keys)
        self.engine = engine or PretendClient()
        self.clock = Clock()
        settings = ServerConfig(key_file=str(self.path), **(config or {}))
        made = []

        def build(path):
            made.append(Tenants(path, clock=self.clock, now=lambda: NOW))
            return made[0]

        monkeypatch.setattr("quire.server.app.Tenants", build)
        self.app = pretend_app(folder, self.engine, settings, **more)
        (self.tenants,) = made

    def http(self):
        return http(self.app)


async def complete(client, key, status=200, **changes):
    answer = await client.post("/v1/completions", json={**BODY, **changes}, headers=headers_of(key))
    assert answer.status_code == status, answer.text
    return answer
