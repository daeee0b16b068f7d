"""Settings and folders of models that requests load: what is refused, and which defaults apply."""

from pathlib import Path

import pytest
from fake_client import http, pretend_app
from model_requests import error_of, load, unload

from quire.settings.model_config import ModelConfig
from quire.settings.server_config import ServerConfig
from quire_testing import byte_tokenizer


def completion(client, model):
    return client.post("/v1/completions", json={"model": model, "prompt": "x", "max_tokens": 2})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_num_seq": 4}, "unknown setting 'max_num_seq'; did you mean 'max_num_seqs'?"),
        ({"max_num_seqs": "many"}, "--max-num-seqs: 'many' is not a whole number"),
        ({"max_num_seqs": 0}, "--max-num-seqs must be above 0"),
        ({"max_num_seqs": True}, "--max-num-seqs must be a whole number; got True"),
        ({"max_num_seqs": 1.5}, "--max-num-seqs must be a whole number; got 1.5"),
        ({"enable_prefix_caching": "yes"}, "--enable-prefix-caching must be true or false"),
        ({"dtype": "float8"}, "--dtype must be one of"),
        ({"dtype": None}, "--dtype must be a text"),
        ({"served_model_name": [1]}, "--served-model-name must be a list of texts"),
        ({"override_generation_config": "x"}, "is not JSON"),
        ({"limit_mm_per_prompt": {"smell": 1}}, "smell"),
        ({"name": "y"}, "`name` belongs beside `settings`"),
        ({"served_model_name": ["deux"]}, "`deux` is in use by a model"),
        ({"trust-remote-code": True}, "`trust-remote-code` can be set in a request only with an admin key"),
        ({"allowed_local_media_path": "/"}, "only with an admin key"),
    ],
)
async def test_settings_that_are_wrong_are_refused(client, folder, settings, words):
    code, message, _ = error_of(await load(client, folder / "late", settings=settings))
    assert code == 400
    assert words in message


async def test_null_is_the_default_of_a_setting_that_has_none(client, pretend, folder):
    settings = {"max_model_len": None, "swap_space": 1, "served_model_name": "spät"}
    assert (await load(client, folder / "late", settings=settings)).status_code == 200
    assert pretend.configs["late"].served_model_name == ("late", "spät")
    assert pretend.configs["late"].swap_space == 1.0
    assert (await completion(client, "spät")).json()["model"] == "late"
    assert (await unload(client, "spät")).json()["id"] == "late"


OPEN = {"host": "0.0.0.0"}


@pytest.mark.parametrize(
    ("settings", "model", "words"),
    [
        (OPEN, "late", "neither --model-root nor --admin-api-key is set"),
        ({**OPEN, "model_root": ("ROOT/late",)}, "late", ""),
        ({**OPEN, "model_root": ("ROOT/late",)}, "held", "not in a folder that models may be loaded from"),
        ({**OPEN, "model_root": ("ROOT/late",)}, "late/../corrupt", "not in a folder that models may be loaded from"),
        ({**OPEN, "model_root": ("ROOT/late",)}, "link", "not in a folder that models may be loaded from"),
        ({"model_root": ("ROOT/late",)}, "held", "(--model-root)"),
        ({**OPEN, "admin_api_key": ("key",)}, "late", ""),
    ],
)
async def test_folders_are_restricted_as_those_of_adapters_are(tmp_path, pretend, settings, model, words):
    for name in ("late", "corrupt", "held"):
        byte_tokenizer(tmp_path / name)
    (tmp_path / "link").symlink_to(tmp_path / "held")
    roots = tuple(root.replace("ROOT", str(tmp_path)) for root in settings.get("model_root", ()))
    config = ServerConfig(**{**settings, "model_root": roots})
    async with http(pretend_app(tmp_path / "late", pretend, config), headers={"x-api-key": "key"}) as client:
        answer = await load(client, tmp_path / model)
        if words:
            assert answer.status_code == 400
            assert words in error_of(answer)[1]
            if "neither" in words:
                assert words in error_of(await unload(client, "second"))[1]
        else:
            assert answer.status_code == 200, answer.text


async def test_below_a_root_neither_hub_ids_nor_other_folders_of_settings_are_used(tmp_path, pretend):
    inside = Path(byte_tokenizer(tmp_path / "root" / "late"))
    config = ServerConfig(model_root=(str(tmp_path / "root"),))
    secret = tmp_path / "secret"
    secret.write_text("x")
    async with http(pretend_app(inside, pretend, config)) as client:
        for body in (
            {"model": "owner/name"},
            {"model": str(inside), "settings": {"tokenizer": "owner/name"}},
            {"model": str(inside), "settings": {"chat_template": str(secret)}},
        ):
            answer = await client.post("/v1/load_model", json={"name": "x", **body})
            assert "(--model-root)" in error_of(answer)[1]
        assert (await load(client, inside, settings={"chat_template": "{{ messages }}"})).status_code == 200


async def test_with_an_admin_key_all_settings_may_be_set_and_flags_are_the_defaults(tmp_path, pretend):
    inside = byte_tokenizer(tmp_path / "late")
    flags = ModelConfig(model="other", max_num_seqs=7, tokenizer="other", page_size=32, trust_remote_code=False)
    config = ServerConfig(admin_api_key=("admin",))
    app = pretend_app(inside, pretend, config)
    object.__setattr__(app.state.service.model_loads._new_models, "defaults", flags)
    async with http(app, headers={"x-api-key": "admin"}) as client:
        answer = await load(client, inside, settings={"trust_remote_code": True, "page_size": 16})
        assert answer.status_code == 200, answer.text
    loaded = pretend.configs["late"]
    assert (loaded.max_num_seqs, loaded.page_size, loaded.trust_remote_code) == (7, 16, True)
    assert (loaded.tokenizer, loaded.model) == (None, str(inside))
