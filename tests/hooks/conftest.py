"""The plugins of examples/hook_tour, installed, and a tiny model."""

from pathlib import Path

import pytest
from hook_rig import TOUR
from plugin_site import PluginSite

from quire_testing import tiny_llama


@pytest.fixture
def tour(site: PluginSite) -> PluginSite:
    site.link(TOUR)
    return site


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")
