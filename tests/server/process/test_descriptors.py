"""The limit of connections follows from the number of files that the process may open."""

from __future__ import annotations

import resource

import pytest

from quire.server.connections.connections import ConnectionLimits
from quire.settings.server_config import ServerConfig


def test_few_file_descriptors_mean_fewer_connections_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 64))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
    limits = ConnectionLimits.from_config(ServerConfig(max_connections=4096))
    assert 1 <= limits.max_connections < 64
    assert "ulimit -n" in caplog.text
