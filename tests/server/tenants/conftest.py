"""Servers with a key file."""

import pytest
from fake_client import PretendClient
from tenant_rig import TenantRig


@pytest.fixture
def rig(tmp_path, monkeypatch):
    def build(tenants, keys, *infos, **more) -> TenantRig:
        engine = PretendClient(*infos) if infos else PretendClient()
        return TenantRig(tmp_path, tenants, keys, engine, monkeypatch=monkeypatch, **more)

    return build
