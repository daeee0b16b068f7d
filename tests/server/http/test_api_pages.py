"""`/docs` and `/redoc` load nothing from other hosts, with or without the package that brings their scripts."""

import re

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from quire.server.http.api_pages import SCRIPTS, add_api_pages, installed_assets


def app_with(assets, **settings):
    app = FastAPI(title="Quire <&>", version="1", docs_url=None, redoc_url=None, **settings)

    @app.get("/v1/models")
    async def models() -> None:
        """List <models>."""

    add_api_pages(app, assets)
    return TestClient(app)


@pytest.fixture
def assets(tmp_path):
    for name in SCRIPTS:
        (tmp_path / name).write_text(f"/* {name} */")
    return tmp_path


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
def test_without_the_package_the_page_lists_the_routes_and_needs_no_script(page):
    text = app_with(None).get(page).text
    assert "<td><code>GET</code><td><code>/v1/models</code><td>List &lt;models&gt;." in text
    assert "Quire &lt;&amp;&gt; 1" in text
    assert not re.search(r"<script|https?://", text)


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
def test_with_the_package_all_that_the_page_loads_is_served_here(assets, page):
    client = app_with(assets)
    text = client.get(page).text
    assert "https://" not in text
    loaded = [url for url in re.findall(r'(?:src|href)="([^"]+)"', text) if url]
    assert any(url.startswith("/docs-assets/") for url in loaded)
    for url in loaded:
        assert client.get(url).status_code == 200, url


def test_behind_a_proxy_the_pages_find_their_files_under_its_prefix(assets):
    client = TestClient(app_with(assets).app, root_path="/prefix")
    assert '"/prefix/docs-assets/' in client.get("/docs").text.replace("'", '"')


def test_the_package_is_looked_for_without_being_imported(monkeypatch):
    monkeypatch.setattr("quire.server.http.api_pages.find_spec", lambda name: None)
    assert installed_assets() is None
