"""The adapters that requests have loaded, as the cluster remembers them, for replicas that start later."""

from __future__ import annotations

from typing import Any

import msgspec

NAMESPACE = b"quire"


class StoredAdapters:
    """Those of one application, in the key-value store of the cluster. Calls may take some milliseconds."""

    def __init__(self, application: str) -> None:
        self._prefix = f"adapters/{application}/".encode()

    def all(self) -> dict[str, StoredAdapter]:
        """By name, in the order of loading."""
        from ray.experimental import internal_kv

        keys = internal_kv._internal_kv_list(self._prefix, namespace=NAMESPACE)
        found = [self.get(key.removeprefix(self._prefix).decode()) for key in keys]
        known = sorted((each for each in found if each is not None), key=lambda each: each.number)
        return {each.name: each for each in known}

    def get(self, name: str) -> StoredAdapter | None:
        """None if it is not loaded."""
        from ray.experimental import internal_kv

        value = internal_kv._internal_kv_get(self._prefix + name.encode(), namespace=NAMESPACE)
        return None if value is None else msgspec.json.decode(value, type=StoredAdapter)

    def put(self, adapter: StoredAdapter) -> None:
        """Remember an adapter, in place of one of the same name."""
        from ray.experimental import internal_kv

        key = self._prefix + adapter.name.encode()
        internal_kv._internal_kv_put(key, msgspec.json.encode(adapter), overwrite=True, namespace=NAMESPACE)

    def remove(self, name: str) -> None:
        """Forget it, if it is known."""
        from ray.experimental import internal_kv

        internal_kv._internal_kv_del(self._prefix + name.encode(), namespace=NAMESPACE)


class StoredAdapter(msgspec.Struct, frozen=True):
    """fields: of the request that has loaded it. number: of the load; the later the larger, another one each time."""

    name: str
    fields: dict[str, Any]
    number: int


def application_name() -> str:
    """Of the application of Ray Serve that this process is part of."""
    from ray import serve

    return str(serve.get_replica_context().app_name)


def replica_id() -> str:
    """Of this process as a replica of Ray Serve."""
    from ray import serve

    return str(serve.get_replica_context().replica_id.unique_id)
