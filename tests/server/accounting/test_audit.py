"""The audit log: who changed what, with what outcome, and never a secret."""

import json

import pytest
from fake_client import PretendClient, http, pretend_app

from quire.errors import BadRequest
from quire.server.accounting.audit import Audit
from quire.server.accounting.audit_entry import entry
from quire.server.accounting.writer import WriterThread
from quire.settings.server_config import ServerConfig
from quire_testing import byte_tokenizer

SECRET = "sk-verysecret123"


async def test_loads_and_unloads_are_recorded_with_their_outcome_and_without_secrets(tmp_path):
    for name in ("late", "corrupt"):
        byte_tokenizer(tmp_path / name)
    lines = tmp_path / "audit.jsonl"
    config = ServerConfig(
        usage_db=str(tmp_path / "u.sqlite"), audit_log=str(lines), api_key=(SECRET,), admin_api_key=("root",)
    )
    app = pretend_app(tmp_path / "late", PretendClient(ends_after=3), config)
    headers = {"Authorization": "Bearer root"}
    async with http(app, headers=headers) as client:
        for name in ("late", "corrupt"):
            body = {"name": name, "model": str(tmp_path / name)}
            if name == "corrupt":
                body["settings"] = {"hf_token": SECRET}
            await client.post("/v1/load_model", json=body)
        await client.post("/v1/unload_model", json={"name": "late", "force": True})
        await client.post("/v1/unload_model", json={"name": "none"})
        await client.post("/v1/unload_lora_adapter", json={"lora_name": "style"})
        response = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        assert response.status_code == 200  # its usage was written, after the entries
        shown = (await client.get("/v1/audit")).json()["data"]
        first = (await client.get("/v1/audit?limit=2")).json()
        second = (await client.get(f"/v1/audit?limit=2&page={first['next_page']}&action=unload_model")).json()
        (late,) = (await client.get("/v1/audit?action=load_model&target=late")).json()["data"]
    app.state.service.accounting.ledger.close(10)
    assert [(row["action"], row["target"], row["outcome"].split(":")[0]) for row in shown[::-1]] == [
        ("load_model", "late", "ok"),
        ("load_model", "corrupt", shown[3]["outcome"].split(":")[0]),
        ("unload_model", "late", "ok"),
        ("unload_model", "none", "NotFound"),
        ("unload_adapter", "style", shown[0]["outcome"].split(":")[0]),
    ]
    assert shown[3]["outcome"] != "ok" != shown[0]["outcome"]
    assert late["details"]["model"] == str(tmp_path / "late")
    assert late["actor"].startswith("key:")
    assert [row["target"] for row in first["data"]] == ["style", "none"]
    assert [row["target"] for row in second["data"]] == ["late"]
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [line["target"] for line in written] == ["late", "corrupt", "late", "none", "style"]
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    assert b"late" in kept
    assert SECRET.encode() not in kept
    assert b'root"' not in lines.read_bytes()


@pytest.mark.parametrize(
    ("details", "hidden"),
    [
        ({"settings": {"api_key": "xyz"}}, "xyz"),
        ({"password": "xyz", "max_tokens": 5}, "xyz"),
        ({"model": "https://user:xyz@host/x"}, "xyz"),
        ({"model": "https://host/x?access_token=xyz&a=1"}, "xyz"),
        ({"list": [{"key": "xyz"}]}, "xyz"),
        ({"note": "sent Bearer abcdefgh"}, "abcdefgh"),
        ({"error": "key sk-abcdefgh is wrong"}, "abcdefgh"),
    ],
)
def test_secrets_are_hidden_and_numbers_of_tokens_are_not(details, hidden):
    line = entry("a", "change", "it", details, "ok").line
    assert hidden.encode() not in line
    assert b"***" in line
    assert ("max_tokens" not in details) or b'"max_tokens": 5' in line


def test_a_change_that_fails_is_recorded_and_raises(tmp_path):
    writer = WriterThread(None, tmp_path / "audit.jsonl", lambda records: None)
    audit = Audit(writer)
    with pytest.raises(BadRequest), audit.change("me", "rename", "x" * 2000):
        raise BadRequest("No such name.")
    audit.record("me", "rename", "y", {"big": list(range(1000))})
    writer.close(10)
    first, second = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
    assert (first["outcome"], len(first["target"])) == ("BadRequest: No such name.", 500)
    assert (second["outcome"], len(second["details"]["big"])) == ("ok", 50)


async def test_sleep_aliases_and_settings_that_are_read_again_are_recorded(tmp_path):
    config = ServerConfig(usage_db=str(tmp_path / "u.sqlite"))
    app = pretend_app(tmp_path, PretendClient(ends_after=3), config)
    async with http(app) as client:
        await client.post("/sleep?level=1")
        await client.post("/wake_up?model=none")
        await client.post("/wake_up")
        await client.post("/v1/model_aliases", json={"alias": "short", "model": "tiny"})
        await client.delete("/v1/model_aliases?alias=short")
        await client.post("/v1/reload")
        response = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        assert response.status_code == 200  # its usage was written, after the entries
        shown = (await client.get("/v1/audit")).json()["data"]
    app.state.service.accounting.ledger.close(10)
    assert [(row["action"], row["target"], row["outcome"].split(":")[0]) for row in shown[::-1]] == [
        ("sleep", "*", "ok"),
        ("wake_up", "none", "NotFound"),
        ("wake_up", "*", "ok"),
        ("set_alias", "short", "ok"),
        ("remove_alias", "short", "ok"),
        ("reload", "settings", "BadRequest"),
    ]
