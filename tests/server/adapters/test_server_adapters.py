"""The routes about adapters, on the real server with two models: texts, codes, fields, and who may call them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import torch
from adapter_client import AdapterClient, error_of, held_back
from adapter_server_rig import PROMPT, Rig, configure, rewrite, served_adapters, tensors
from safetensors.torch import save_file

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with served_adapters(tmp_path_factory.mktemp("models")) as made:
        yield made


@pytest.fixture
def asks(rig: Rig) -> Iterator[AdapterClient]:
    """A client; what a test loads is unloaded after it."""
    yield rig.asks
    rig.forget()


# --- the wire ----------------------------------------------------------------------------------------


def test_load_use_and_unload(rig: Rig, asks: AdapterClient) -> None:
    reply = asks.load("style", rig.good, base_model_name="one")
    assert (reply.status_code, reply.text) == (200, "Success: LoRA adapter 'style' added successfully.")
    assert reply.headers["content-type"].startswith("text/plain")
    assert asks.ids("style", PROMPT) == rig.one.greedy(rig.good, PROMPT, 12)
    assert asks.ids("one", PROMPT) == rig.one.greedy(None, PROMPT, 12)
    assert asks.complete("style").json()["model"] == "style"
    reply = asks.unload("style")
    assert (reply.status_code, reply.text) == (200, "Success: LoRA adapter 'style' removed successfully.")
    status, kind, message, param = error_of(asks.complete("style"))
    assert (status, kind, param) == (404, "NotFoundError", "model")
    assert "`style` does not exist" in message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"lora_name": "", "lora_path": "x"}, "Both 'lora_name' and 'lora_path' must be provided."),
        ({"lora_name": "x", "lora_path": ""}, "Both 'lora_name' and 'lora_path' must be provided."),
        ({"lora_name": "one", "lora_path": "x"}, "The lora adapter 'one' conflicts with a served base model."),
        (
            {"lora_name": "plain", "lora_path": "x"},
            "The lora adapter 'plain' has already been loaded. If you want to load the adapter in place, set "
            "'load_inplace' to True.",
        ),
    ],
)
def test_what_a_load_must_not_say(asks: AdapterClient, body: dict[str, str], said: str) -> None:
    reply = asks.http.post("/v1/load_lora_adapter", json=body)
    assert error_of(reply)[:3] == (400, "InvalidUserInput", said)


def test_a_path_without_a_folder_is_not_found(rig: Rig, asks: AdapterClient) -> None:
    missing = rig.root / "missing"
    reply = asks.load("x", missing)
    assert error_of(reply)[:3] == (404, "NotFoundError", f"Loading lora x failed: No adapter found for {missing}")


@pytest.mark.parametrize("missing", ["lora_name", "lora_path"])
def test_a_missing_field_is_named(asks: AdapterClient, missing: str) -> None:
    body = {"lora_name": "x", "lora_path": "x"}
    del body[missing]
    status, _, message, param = error_of(asks.http.post("/v1/load_lora_adapter", json=body))
    assert (status, param) == (400, f"body.{missing}")
    assert "Field required" in message


def test_what_an_unload_must_say(asks: AdapterClient) -> None:
    said = "'lora_name' needs to be provided to unload a LoRA adapter."
    assert error_of(asks.unload(""))[:3] == (400, "InvalidUserInput", said)
    said = "The lora adapter 'nobody' cannot be found."
    assert error_of(asks.unload("nobody"))[:3] == (404, "NotFoundError", said)
    reply = asks.http.post("/v1/unload_lora_adapter", json={"lora_name": "nobody", "lora_int_id": 1})
    assert reply.status_code == 404


@pytest.mark.parametrize("name", ["a/b", "../one", "..", ".", "a\\b", "/etc", " a", "a\nb", "n" * 129])
def test_a_name_that_could_be_a_path_is_refused(rig: Rig, asks: AdapterClient, name: str) -> None:
    before = asks.rows()
    status, kind, message, param = error_of(asks.load(name, rig.good, base_model_name="one"))
    assert (status, kind, param) == (400, "InvalidUserInput", "lora_name")
    assert "cannot be the name of an adapter" in message
    assert asks.complete(name).status_code == 404
    assert asks.rows() == before


def test_the_error_for_an_unknown_name_lists_adapters_too(asks: AdapterClient) -> None:
    reply = asks.complete("nobody")
    said = "The model `nobody` does not exist. Valid aliases: one, two. Adapters: plain, written."
    assert error_of(reply) == (404, "NotFoundError", said, "model")


# --- what is shown -----------------------------------------------------------------------------------


def test_adapters_are_cards_with_parent_and_root(rig: Rig) -> None:
    with openai.OpenAI(base_url=f"{rig.url}/v1", api_key="user", max_retries=0) as client:
        cards = {card.id: card.model_dump() for card in client.models.list()}
        assert list(cards) == ["one", "two", "plain", "written"]
        shown = {name: (card["root"], card["parent"], card["max_model_len"]) for name, card in cards.items()}
        assert shown["one"] == (str(rig.one.folder), None, 256)
        assert shown["plain"] == (str(rig.good), "one", None)
        assert shown["written"] == (str(rig.for_two), "two", None)
        (permission,) = cards["plain"]["permission"]
        assert permission["allow_sampling"] is True
        assert client.models.retrieve("written").id == "written"
        answer = client.completions.create(model="plain", prompt=PROMPT, max_tokens=4, temperature=0)
        assert answer.model == "plain"


def test_the_list_says_state_size_place_and_use(rig: Rig, asks: AdapterClient) -> None:
    asks.load("style", rig.other, base_model_name="one", pinned=True)
    fresh = asks.row("style")
    asks.text("style")
    used = asks.row("style")
    revision, size = fresh["revision"], fresh["bytes"]
    assert size >= 4 * 4 * sum(tensor.shape.numel() // 4 for tensor in tensors(rig.other).values())
    assert fresh == {
        "id": "style",
        "object": "adapter",
        "parent": "one",
        "root": str(rig.other),
        "revision": revision,
        "state": "ready",
        "error": None,
        "tier": "host",
        "kind": "LORA",
        "rank": 4,
        "bytes": size,
        "targets": fresh["targets"],
        "pinned": True,
        **dict.fromkeys(("virtual_tokens", "requests", "requests_total"), 0),
    }
    assert {target.rpartition(".")[2] for target in fresh["targets"]} == {"q_proj", "down_proj"}
    assert used == {**fresh, "tier": "device", "requests_total": 1}
    assert {row["id"]: row["pinned"] for row in asks.rows()} == {"plain": False, "written": True, "style": True}


def test_metrics_are_reported_per_adapter(rig: Rig, asks: AdapterClient) -> None:
    asks.load("counted", rig.other, base_model_name="one")
    asks.ids("counted", PROMPT, 5)
    asks.ids("counted", PROMPT, 6)
    figures = metrics(rig.url)
    of = '{adapter_name="counted",engine="0",model_name="one"}'
    assert figures[f"quire:adapter_requests_total{of}"] == 2
    assert figures[f"quire:adapter_prompt_tokens_total{of}"] == 2 * len(PROMPT)
    assert figures[f"quire:adapter_generation_tokens_total{of}"] == 11
    # Where adapters are is asked of the host about once a second.
    while (
        sum(
            figures[f'quire:adapters{{engine="0",model_name="one",tier="{tier}"}}']
            for tier in ("device", "host", "disk")
        )
        != 2
    ):
        figures = metrics(rig.url)
    assert figures['quire:adapter_loads_total{engine="0",model_name="two"}'] == 1
    assert figures['quire:adapter_memory_bytes{engine="0",model_name="one"}'] > 0
    assert any(name.startswith('quire:lora_requests_info{engine="0",max_lora="2"') for name in figures)


# --- loading in the background -----------------------------------------------------------------------


def test_a_background_load_shows_its_state(rig: Rig, asks: AdapterClient, tmp_path: Path) -> None:
    folder = shutil.copytree(rig.good, rig.root / "slow")
    with held_back(rig.server) as release:
        reply = asks.load("slow", folder, base_model_name="one", wait=False)
        assert (reply.status_code, reply.text) == (200, "Success: LoRA adapter 'slow' is being loaded.")
        row = asks.row("slow")
        assert (row["state"], row["tier"], row["rank"], row["bytes"]) == ("loading", None, 0, 0)
        assert "slow" not in [card["id"] for card in asks.http.get("/v1/models").json()["data"]]
        with asks.stream("one", 200) as pieces:  # while it is being read, others run, with adapters and without
            assert len("".join(pieces)) > 0
        assert asks.ids("plain", PROMPT) == rig.one.greedy(rig.good, PROMPT, 12)
        assert asks.row("slow")["state"] == "loading"
        release.set()
        assert asks.when("slow", "ready")["rank"] == 8
    assert asks.ids("slow", PROMPT) == rig.one.greedy(rig.good, PROMPT, 12)


def test_a_background_load_that_fails_shows_why(rig: Rig, asks: AdapterClient) -> None:
    folder = shutil.copytree(rig.good, rig.root / "hopeless")
    rewrite(folder, lambda found: found.popitem())
    assert asks.load("hopeless", folder, base_model_name="one", wait=False).status_code == 200
    row = asks.when("hopeless", "failed")
    assert row["error"].startswith("The adapter lacks ")
    status, kind, message, _ = error_of(asks.complete("hopeless"))
    assert (status, kind) == (400, "BadRequestError")
    assert message.startswith("The adapter `hopeless` could not be loaded: ")
    assert asks.load("hopeless", rig.good, base_model_name="one").status_code == 200, "a name that failed is free"


# --- several models, several adapters ----------------------------------------------------------------


def test_an_adapter_belongs_to_a_base(rig: Rig, asks: AdapterClient) -> None:
    assert asks.ids("written", PROMPT) == rig.two.greedy(rig.for_two, PROMPT, 12)
    said = "The adapter `written` belongs to `two`, not to `one`."
    assert error_of(asks.complete("one", adapters=[{"name": "written"}]))[:3] == (400, "BadRequestError", said)
    reply = asks.load("lost", rig.good, base_model_name="three")
    assert error_of(reply)[::2] == (400, "The model `three` does not exist. Valid aliases: one, two.")
    reply = asks.load("written", rig.good, base_model_name="one", load_inplace=True)
    assert error_of(reply)[::2] == (400, "The lora adapter 'written' has already been loaded for the model `two`.")
    nameless = shutil.copytree(rig.good, rig.root / "nameless")
    configure(nameless, base_model_name_or_path="somebody/else")
    assert "`base_model_name` must name the model" in error_of(asks.load("lost", nameless))[2]
    configure(nameless, base_model_name_or_path=str(rig.one.folder))
    assert asks.load("found", nameless).status_code == 200
    assert asks.row("found")["parent"] == "one"


def test_several_adapters_with_weights_work_together_on_one_request(rig: Rig, asks: AdapterClient) -> None:
    asks.load("b", rig.other, base_model_name="one")
    weights = {"plain": 0.5, "b": -1.5}
    summed = added_up(rig.root / "sum", (rig.good, 0.5), (rig.other, -1.5))
    chosen = [{"name": name, "weight": weight} for name, weight in weights.items()]
    expected = rig.one.greedy(summed, PROMPT, 12)
    assert expected not in (rig.one.greedy(rig.good, PROMPT, 12), rig.one.greedy(None, PROMPT, 12))
    assert asks.ids("one", PROMPT, adapters=chosen) == expected
    assert asks.ids("one", PROMPT, adapters=chosen[::-1]) == expected
    assert asks.ids("one", PROMPT, adapters=[{"name": "plain", "weight": 0}]) == rig.one.greedy(None, PROMPT, 12)
    assert asks.complete("one", adapters=chosen).json()["model"] == "one"
    assert "must name the model itself" in error_of(asks.complete("b", adapters=chosen))[2]
    assert "names `b` 2 times" in error_of(asks.complete("one", adapters=[{"name": "b"}] * 2))[2]
    assert "must be from -100 to 100" in error_of(asks.complete("one", adapters=[{"name": "b", "weight": 1e9}]))[2]
    assert error_of(asks.complete("one", adapters=[{"name": "z"}]))[0] == 404


def added_up(folder: Path, *parts: tuple[Path, float]) -> Path:
    """One adapter that does what several with weights do: their ranks side by side."""
    found: dict[str, list[torch.Tensor]] = {}
    for path, weight in parts:
        config = json.loads((path / "adapter_config.json").read_text())
        scale = weight * config["lora_alpha"] / (config["r"] ** 0.5 if config["use_rslora"] else config["r"])
        for name, tensor in tensors(path).items():
            found.setdefault(name, []).append(tensor * scale if "lora_B" in name else tensor)
    shutil.copytree(parts[0][0], folder)
    joined = {name: torch.cat(each, dim=int("lora_B" in name)) for name, each in found.items()}
    ranks = {
        name.split("model.", 2)[2].removesuffix(".lora_A.weight"): each.shape[0]
        for name, each in joined.items()
        if "lora_A" in name
    }
    configure(folder, rank_pattern=ranks, alpha_pattern=ranks)
    save_file({name: each.contiguous() for name, each in joined.items()}, folder / "adapter_model.safetensors")
    return folder


# --- who may, and from where -------------------------------------------------------------------------


def test_only_the_admin_s_key_changes_the_adapters(rig: Rig, asks: AdapterClient) -> None:
    for key, seen, status, kind in (("user", 200, 403, "PermissionDeniedError"), ("", 401, 401, "AuthenticationError")):
        client = AdapterClient(rig.url, key)
        for reply in (client.load("x", rig.good), client.unload("plain")):
            assert error_of(reply)[:2] == (status, kind)
            assert "needs an admin key" in error_of(reply)[2]
        assert client.http.get("/v1/adapters").status_code == seen
        assert client.complete("plain").status_code == seen
        client.http.close()
    assert [row["id"] for row in asks.rows()] == ["plain", "written"]


def test_folders_outside_the_root_are_refused_links_too(rig: Rig, asks: AdapterClient, tmp_path: Path) -> None:
    outside = shutil.copytree(rig.good, tmp_path / "outside")
    link = rig.root / "link"
    link.symlink_to(outside)
    for path in (outside, link, rig.root / ".." / tmp_path.name / "outside", Path("/etc")):
        status, kind, message, param = error_of(asks.load("x", path))
        assert (status, kind, param) == (400, "InvalidUserInput", "lora_path")
        assert "(--lora-root)" in message


def test_beside_a_root_names_are_still_looked_for(rig: Rig, asks: AdapterClient) -> None:
    status, kind, message, param = error_of(asks.load("x", "nobody/knows"))
    assert (status, kind, param) == (404, "NotFoundError", "lora_path")
    assert "No adapter found for nobody/knows" in message


def metrics(url: str) -> dict[str, float]:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
