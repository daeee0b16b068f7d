"""`platform top`: what it computes between two readings of /metrics, how it draws it, and what it says of errors."""

import contextlib
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from rich.console import Console
from rich.text import Text

from quire.cli import main
from quire.commands.remote import RemoteError
from quire.commands.top import scrape
from quire.commands.top.figures import figures
from quire.commands.top.frame import MAX_ADAPTERS, frame
from quire.commands.top.live import frames
from quire.commands.top.scrape import parse, read

BEFORE = """\
quire:num_requests_running{model_name="a"} 2
quire:num_requests_waiting{model_name="a"} 3
quire:generation_tokens_total{model_name="a"} 100
quire:prompt_tokens_total{model_name="a"} 500
quire:kv_cache_usage_perc{model_name="a"} 0.95
quire:prefix_cache_hits_total{model_name="a"} 1
quire:prefix_cache_queries_total{model_name="a"} 4
quire:request_success_total{model_name="a",finished_reason="stop"} 10
quire:request_success_total{model_name="a",finished_reason="error"} 1
quire:spec_decode_num_draft_tokens_total{model_name="a"} 50
quire:spec_decode_num_accepted_tokens_total{model_name="a"} 20
quire:time_to_first_token_seconds_sum{model_name="a"} 1.0
quire:time_to_first_token_seconds_count{model_name="a"} 10
quire:adapters{model_name="a",tier="device"} 2
quire:adapters{model_name="a",tier="disk"} 7
quire:adapter_requests_running{model_name="a",adapter_name="poems"} 2
quire:adapter_requests_total{model_name="a",adapter_name="poems"} 4
quire:adapter_requests_total{model_name="a",adapter_name="law"} 9
quire:adapter_generation_tokens_total{model_name="a",adapter_name="poems"} 30
quire:lora_requests_info{model_name="a",running_lora_adapters="poems",waiting_lora_adapters="law,x"} 1
quire:admission_rejections_total{model_name="a",reason="queue_full"} 5
process_cpu_seconds_total 10
process_resident_memory_bytes 1048576
"""
AFTER = (
    BEFORE.replace('generation_tokens_total{model_name="a"} 100', 'generation_tokens_total{model_name="a"} 300')
    .replace('seconds_sum{model_name="a"} 1.0', 'seconds_sum{model_name="a"} 2.0')
    .replace('seconds_count{model_name="a"} 10', 'seconds_count{model_name="a"} 12')
    .replace('adapter_name="poems"} 30', 'adapter_name="poems"} 50')
    .replace("cpu_seconds_total 10", "cpu_seconds_total 11")
)


def drawn(found, width=140):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(frame("http://server", found))
    return console.export_text()


@pytest.mark.parametrize("prefix", ["quire:", "vllm:", ""])
def test_rates_and_means_are_those_between_two_readings(prefix):
    now, before = (parse(text.replace("quire:", prefix), at_s) for text, at_s in ((AFTER, 12.0), (BEFORE, 10.0)))
    found = figures(before, now)
    (model,) = found.models
    assert (model.name, model.running, model.waiting) == ("a", 2, 3)
    assert (model.generation_rate, model.prompt_rate) == (100.0, 0.0)
    assert (model.kv_usage, model.hit_rate, model.draft_acceptance) == (0.95, 0.25, 0.4)
    assert (model.first_token_s, model.per_token_s) == (0.5, None)
    assert (model.ended, model.failed) == (11, 1)
    assert (found.rejected, found.cpu, found.memory_bytes) == (5, 0.5, 1048576)
    assert found.tiers == {"device": 2, "disk": 7}
    poems, law = sorted(found.adapters, key=lambda row: row.name, reverse=True)
    assert (poems.name, poems.running, poems.waits, poems.rate, poems.ended) == ("poems", 2, False, 10.0, 4)
    assert (law.name, law.running, law.waits, law.rate, law.ended) == ("law", 0, True, 0.0, 9)


def test_engine_processes_of_a_model_are_shown_together():
    second = BEFORE.replace('model_name="a"', 'model_name="a",engine="1"').replace("0.95", "0.05")
    both = BEFORE + "\n".join(line for line in second.splitlines() if line.startswith("quire:"))
    (model,) = figures(parse(both, 0.0), parse(both, 2.0)).models
    assert (model.running, model.waiting, model.kv_usage, model.hit_rate) == (4, 6, 0.5, 0.25)


def test_counters_of_a_server_that_was_restarted_begin_at_zero():
    found = figures(parse(AFTER, 0.0), parse(BEFORE, 2.0))
    assert found.models[0].generation_rate == 50.0


def test_a_frame_shows_the_server_its_models_and_its_adapters():
    text = drawn(figures(parse(BEFORE, 10.0), parse(AFTER, 12.0)))
    head, columns, model, adapters, _, poems, law = (line.rstrip() for line in text.splitlines())
    assert head.startswith("http://server  generating 100.0 tokens/s")
    assert columns.split()[:3] == ["model", "run", "wait"]
    assert model.split() == [
        "a",
        "2",
        "3",
        "100.0",
        "0.0",
        "━━━━━━━━━━",
        "95",
        "%",
        "25",
        "%",
        "40",
        "%",
        "500",
        "ms",
        "–",
        "11",
        "1",
    ]
    assert adapters == "adapters: 2 on device, 7 on disk"
    assert poems.split() == ["poems", "a", "2", "10.0", "4"]
    assert law.split() == ["law", "a", "0", "0.0", "9", "waits", "for", "a", "slot"]


def test_only_the_adapters_with_the_most_requests_are_shown():
    rows = "".join(f'adapter_requests_total{{model_name="a",adapter_name="n{i}"}} {i}\n' for i in range(200))
    scraped = parse(f'num_requests_running{{model_name="a"}} 0\n{rows}', 0.0)
    text = drawn(figures(scraped, scraped))
    assert "n199" in text
    assert "n169 " not in text
    assert f"and {200 - MAX_ADAPTERS} more" in text


@contextlib.contextmanager
def answering(*answers):
    """The URL of a server with these (status, body), in order; the last one again and again. It notes the keys."""
    left, keys = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            keys.append((self.path, self.headers["Authorization"]))
            status, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", keys
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, "<html>", "is not in Prometheus' text format"),
        (200, "up 1\n", "has no metric num_requests_running"),
        (401, "", "needs an API key: --api-key"),
        (404, "", "/metrics answered 404"),
        (200, "x" * 200, "has more than 100 bytes"),
    ],
)
def test_an_answer_that_is_not_metrics_is_an_error_with_a_sentence(monkeypatch, status, body, said):
    monkeypatch.setattr(scrape, "MAX_BYTES", 100)
    with answering((status, body)) as (url, _), httpx.Client() as client, pytest.raises(RemoteError, match=said):
        read(client, url)


def test_the_command_fails_where_no_server_responds(capsys):
    assert main(["top", "--url", "http://127.0.0.1:1", "--once"]) == 2
    assert "No server responds at http://127.0.0.1:1/metrics" in capsys.readouterr().err


def test_a_view_goes_on_when_the_server_is_away_for_a_while(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    answers, key = ((200, BEFORE), (200, AFTER), (503, ""), (200, AFTER)), {"Authorization": "Bearer k"}
    with answering(*answers) as (url, keys), httpx.Client(headers=key) as client:
        found = frames(client, f"{url}/v1/", 1.0)
        kinds = [isinstance(next(found), Text) for _ in range(3)]
    assert kinds == [False, True, False]
    assert set(keys) == {("/metrics", "Bearer k")}
