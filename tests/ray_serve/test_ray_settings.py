"""What the application on Ray reads from its arguments, and how it counts replicas. Needs no Ray."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quire.commands.command_line import run
from quire.errors import ConfigError
from quire.ray.autoscaling import QueueAndKvPolicy
from quire.ray.calls import HttpCall
from quire.ray.settings import read_settings


def test_settings_are_those_of_a_file_of_serve():
    served = read_settings({"model": "demo-chat", "max_model_len": "1k", "api-key": ["a", "b"], "enable-lora": True})
    assert served.models[0].max_model_len == 1000
    assert tuple(served.config.api_key) == ("a", "b")
    assert served.enable_lora


@pytest.mark.parametrize("key", ["port", "max-restarts", "ssl_certfile"])
def test_settings_that_ray_serve_has_itself_are_refused(key):
    with pytest.raises(ConfigError, match=key):
        read_settings({"model": "demo-chat", key: "1"})


def test_a_setting_that_serve_does_not_know_is_refused(capsys):
    with pytest.raises(ConfigError, match="refuses"):
        read_settings({"model": "demo-chat", "max-model-length": 5})
    assert "max-model-length" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("requests", "used", "replicas"),
    [(0, [0.0, 0.0], 0), (8, [0.1, 0.1], 4), (1, [0.8, 0.8], 2), (1, [1.0, 1.0], 2.5), (3, [], 1.5)],
)
def test_there_are_as_many_replicas_as_requests_or_caches_need(requests, used, replicas):
    context = SimpleNamespace(
        current_num_replicas=2,
        total_num_requests=requests,
        aggregated_metrics={"kv_cache_usage": dict(enumerate(used))} if used else {},
        config=SimpleNamespace(get_target_ongoing_requests=lambda: 2),
    )
    assert QueueAndKvPolicy(target_kv_usage=0.8)(context) == (pytest.approx(replicas), {})


def test_without_replicas_the_policy_keeps_what_ray_wants():
    assert QueueAndKvPolicy()(SimpleNamespace(current_num_replicas=0, target_num_replicas=1)) == (1, {})


def test_a_use_of_caches_above_all_of_them_is_refused():
    with pytest.raises(ValueError, match="target_kv_usage"):
        QueueAndKvPolicy(target_kv_usage=1.5)


def test_a_call_describes_the_request_that_it_was_made_of():
    scope = {
        "method": "POST",
        "path": "/prefix/v1/x",
        "root_path": "/prefix",
        "raw_path": b"/v1/x",
        "query_string": b"a=1",
        "headers": [(b"x", b"y")],
        "client": ["1.2.3.4", 5],
    }
    made = HttpCall.from_scope(scope, b"body").scope()
    assert (made["path"], made["root_path"], made["query_string"]) == ("/v1/x", "", b"a=1")
    assert (made["headers"], made["client"]) == ([(b"x", b"y")], ("1.2.3.4", 5))


@pytest.mark.parametrize(("text", "message"), [("a: [", "cannot be read"), ("a: 1", "no list of `applications`")])
def test_deploy_says_what_is_wrong_with_its_file(tmp_path, text, message):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'quire-serve[ray]'")
    (tmp_path / "app.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        run(["deploy", str(tmp_path / "app.yaml")])
