"""/tokenizer_info: what clients need that make prompts themselves."""

from fake_client import PretendClient, http, info, pretend_app

from quire.settings.server_config import ServerConfig


async def test_special_tokens_and_the_template_are_shown(tmp_path):
    async with http(pretend_app(tmp_path, PretendClient(info("a"), info("b", max_model_len=64)))) as client:
        first, second = [(await client.get("/tokenizer_info", params=p)).json() for p in ({}, {"model": "b"})]
        unknown = await client.get("/tokenizer_info", params={"model": "c"})
    assert (first["model"], second["model"], second["model_max_length"]) == ("a", "b", 64)
    assert {"eos_token", "bos_token", "pad_token", "chat_template", "tokenizer_class"} <= first.keys()
    assert "messages" in first["chat_template"]
    assert unknown.status_code == 404


async def test_it_can_be_switched_off(tmp_path):
    config = ServerConfig(enable_tokenizer_info_endpoint=False)
    async with http(pretend_app(tmp_path, config=config)) as client:
        assert (await client.get("/tokenizer_info")).status_code == 404
