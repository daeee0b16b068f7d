"""The routes of the page: its files, their headers, and what needs a key."""

import re

import pytest
from fake_client import http, pretend_app

from quire.errors import PluginError
from quire.hooks.registry import load
from quire.records import Registry, Router
from quire.settings.flag_parser import FlagParser
from quire.settings.model_values import read_config
from quire.settings.options import add_config
from quire.settings.server_config import ServerConfig
from quire_page import quire_routers
from quire_page.files import FOLDER, NAMES
from quire_testing import check_router

MAX_BYTES, MAX_LINES, MAX_FILES = 300_000, 300, 15
OWN = [name for name in NAMES if name.endswith((".js", ".css", ".html")) and not name.startswith("vendor/")]


@pytest.fixture(scope="module")
def app_with(tmp_path_factory):
    """Makes an application with the page and these settings of the server."""
    folder, registry = tmp_path_factory.mktemp("tokenizer"), load(["page"])
    return lambda **settings: pretend_app(folder, config=ServerConfig(**settings), registry=registry)


@pytest.fixture(scope="module")
def app(app_with):
    return app_with()


def text(name):
    return (FOLDER / name).read_text()


def test_the_router_is_one():
    (record,) = quire_routers()
    check_router(record, ["/ui/models", "/ui/states", "/ui/clients"])


def test_every_file_of_the_folder_is_served_and_no_other():
    assert sorted(NAMES) == sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file())


def test_the_page_is_small_and_its_files_are_readable():
    assert sum((FOLDER / name).stat().st_size for name in NAMES) <= MAX_BYTES
    assert max(text(name).count("\n") for name in OWN) <= MAX_LINES
    assert max(len(list(folder.iterdir())) for folder in FOLDER.iterdir() if folder.is_dir()) <= MAX_FILES


def test_nothing_is_inline_and_nothing_comes_from_elsewhere():
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\son\w+=|style=", text("index.html"))
    for name in OWN:
        assert not re.search(r"(https?:)?//[\w-]+\.\w", text(name)), name
        assert not re.search(r"innerHTML|insertAdjacentHTML|\beval\(|new Function", text(name)), name


def test_every_module_is_preloaded_and_every_import_has_a_file():
    modules = {name for name in NAMES if name.endswith(".js")} - {"app/main.js", "vendor/uplot.js"}
    assert set(re.findall(r'modulepreload" href="ui/([^"]+)"', text("index.html"))) == modules
    for name in modules & set(OWN):
        for target in re.findall(r'from "([^"]+)"', text(name)):
            assert ((FOLDER / name).parent / target).resolve().is_relative_to(FOLDER)
            assert ((FOLDER / name).parent / target).is_file(), f"{name} imports {target}"


async def test_files_have_their_type_a_strict_policy_and_a_tag(app):
    kinds = {"/": "text/html", "/ui/app/main.js": "text/javascript", "/ui/style/base.css": "text/css"}
    async with http(app) as client:
        for path, kind in {**kinds, "/ui/icon.svg": "image/svg+xml"}.items():
            answer = await client.get(path)
            assert answer.headers["content-type"].split(";")[0] == kind
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "connect-src 'self'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            known = {"If-None-Match": f'"old", W/{answer.headers["etag"]}'}
            again = await client.get(path, headers=known)
            assert (again.status_code, again.content) == (304, b"")
            assert (await client.get(path, headers={"If-None-Match": '"old"'})).status_code == 200
            assert (await client.head(path)).headers["etag"] == answer.headers["etag"]


@pytest.mark.parametrize("name", ["../files.py", "%2e%2e/files.py", "app/../../files.py", "/etc/passwd", "app", ""])
async def test_no_other_file_can_be_reached(app, name):
    async with http(app) as client:
        assert (await client.get(f"http://test/ui/{name}")).status_code == 404


async def test_the_files_need_no_key_and_everything_else_does(app_with):
    async with http(app_with(api_key=("secret",))) as client:
        assert {(await client.get(path)).status_code for path in ("/", *(f"/ui/{name}" for name in NAMES))} == {200}
        closed = ("/ui/models", "/ui/none.js", "/plugins", "/v1/models")
        assert {(await client.get(path)).status_code for path in closed} == {401}
        assert (await client.get("/ui/models", headers={"Authorization": "Bearer secret"})).status_code == 200


async def test_models_are_described(app):
    async with http(app) as client:
        (row,) = (await client.get("/ui/models")).json()["data"]
    assert row["aliases"] == [row["id"]]
    assert "generate" in row["tasks"]


async def test_states_of_models_are_listed(app):
    async with http(app) as client:
        (row,) = (await client.get("/ui/models")).json()["data"]
        assert (await client.get("/ui/states")).json()["data"] == [{"id": row["id"], "state": "ready"}]


ADMINS = {"api_key": ("one", "two"), "admin_api_key": ("boss",)}


@pytest.mark.parametrize(
    ("settings", "key", "seen"),
    [
        (ADMINS, "boss", [("key a5e7c002", True), ("key 3fc4ccfe", False), ("key 7692c3ad", False)]),
        (ADMINS, "one", [("key 7692c3ad", True)]),
        ({"api_key": ("one", "two")}, "two", [("key 3fc4ccfe", True), ("key 7692c3ad", False)]),
        ({}, "", [("127.0.0.1", True)]),
    ],
)
async def test_what_clients_used_is_seen_by_those_who_may(app_with, settings, key, seen):
    app = app_with(**settings)
    async with http(app) as client:
        for name in settings.get("api_key", ("",)) + settings.get("admin_api_key", ()):
            body, headers = {"prompt": "abc", "max_tokens": 2}, {"x-api-key": name}
            assert (await client.post("/v1/completions", json=body, headers=headers)).status_code == 200
            await app.state.service.telemetry.report_finished()
        rows = (await client.get("/ui/clients", headers={"x-api-key": key})).json()["data"]
    assert [(row["client"], row["is_me"]) for row in rows] == seen
    assert {(row["num_requests"], row["num_prompt_tokens"]) for row in rows} == {(1, 3)}
    assert all(row["num_generated_tokens"] > 0 for row in rows)


async def test_a_flag_switches_the_page_off(app_with):
    parser = FlagParser()
    add_config(parser, ServerConfig)
    assert not read_config(ServerConfig, vars(parser.parse_args(["--no-ui"]))).ui
    async with http(app_with(ui=False)) as client:
        assert {(await client.get(path)).status_code for path in ("/", "/ui/models", "/ui/app/main.js")} == {404}
        assert (await client.get("/health")).status_code == 200


def test_a_router_may_open_only_paths_that_it_answers(tmp_path):
    (page,) = quire_routers()
    wrong = Router("other", page.build, open_paths=("/v1/models",))
    registry = Registry(records={"quire_routers": {"other": wrong}}, origin={("quire_routers", "other"): "mine"})
    with pytest.raises(PluginError, match=r"'mine'.*opens /v1/models, but has no route"):
        pretend_app(tmp_path, registry=registry)
    with pytest.raises(AssertionError, match="needs no key"):
        check_router(wrong)
