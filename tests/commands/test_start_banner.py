"""What a server prints when it accepts requests."""

import pytest
from fake_client import PretendClient, embedder, info, pretend_app

from quire.commands.start_banner import banner_lines
from quire.server.process.serve import _started
from quire.server.process.started import StartedServer
from quire.types.adapter_info import AdapterInfo

CHAT = info("small", operations="cpp-avx2", kv_cache_bytes=3 << 19)


def lines(**changes):
    given = {
        "url": "http://127.0.0.1:8000",
        "models": (CHAT, embedder(num_parameters=2_500_000)),
        "adapters": (),
        "pages": frozenset({"/docs", "/metrics"}),
        "chats": frozenset({"small"}),
        "requires_key": False,
    }
    return list(banner_lines(StartedServer(**{**given, **changes})))


def test_it_names_the_pages_the_models_and_what_to_try():
    assert lines() == [
        "Quire is ready at http://127.0.0.1:8000",
        "  routes   http://127.0.0.1:8000/docs",
        "  metrics  http://127.0.0.1:8000/metrics",
        "  models",
        "    small     1000 parameters, float32 on cpu with cpp-avx2 operations, context 128 tokens, "
        "KV cache 1.5 MiB for 1024 tokens",
        "    embedder  2.5 M parameters, float32 on cpu, context 128 tokens, no KV cache",
        "  to try",
        "    platform chat",
        "    platform top",
        "    curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' "
        """-d '{"model": "small", "messages": [{"role": "user", "content": "Hello"}]}'""",
    ]


def test_a_page_at_the_root_is_named_first():
    assert lines(pages=frozenset({"/"}))[1] == "  page     http://127.0.0.1:8000/"


def test_adapters_are_listed_by_model_and_not_without_end():
    adapters = [AdapterInfo(name=f"n{i}", model="small", path="/") for i in range(25)]
    found = "\n".join(lines(adapters=adapters))
    assert "  adapters\n    of small: n0, n1, " in found
    assert "n19 and 5 more" in found


def test_commands_name_another_address_and_a_key():
    found = lines(url="http://0.0.0.0:9000", requires_key=True)
    assert found[0] == "Quire is ready at http://0.0.0.0:9000"
    assert found[-3:-1] == [
        "    platform chat --url http://127.0.0.1:9000/v1 --api-key KEY",
        "    platform top --url http://127.0.0.1:9000 --api-key KEY",
    ]
    assert "-H 'Authorization: Bearer KEY'" in found[-1]


@pytest.mark.parametrize(
    ("model", "commands"),
    [
        (info("plain"), ["platform complete", "platform top", "/v1/completions"]),
        (embedder(), ["platform top", "/v1/embeddings"]),
        (info("judge", tasks=("classify",)), ["platform top", "/classify"]),
        (info("speech", tasks=("transcribe",)), ["platform top"]),
    ],
)
def test_what_to_try_is_something_that_the_models_can_do(model, commands):
    found = lines(models=(model,), chats=frozenset())
    found = found[found.index("  to try") + 1 :]
    assert len(found) == len(commands)
    assert all(command in line for command, line in zip(commands, found, strict=True))


def test_a_server_without_models_has_no_table_of_them():
    assert lines(models=()) == [*lines()[:3], "  to try", "    platform chat", "    platform top"]


def test_the_application_says_what_it_serves(tmp_path):
    client = PretendClient(info("a"), info("b"))
    client.adapters.infos["x"] = AdapterInfo(name="x", model="a", path="/", state="ready")
    started = _started(pretend_app(tmp_path, client), "http://here")
    assert [one.name for one in started.models] == ["a", "b"]
    assert [one.name for one in started.adapters] == ["x"]
    assert started.pages - {"/"} == {"/docs", "/metrics"}
    assert (started.chats, started.requires_key) == (frozenset({"a", "b"}), False)
