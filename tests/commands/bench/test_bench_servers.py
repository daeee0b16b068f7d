"""`bench serve`, `sweep` and `compare` against scripted servers, and the pictures of a sweep."""

import json
import struct
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from quire.cli import main
from quire.commands.remote import OpenAIServer, RemoteError
from quire_bench.servers.compare import Comparison
from quire_bench.servers.load import LoadPattern, Outcome, Trace, send
from quire_bench.servers.plot import Panel, Picture
from quire_bench.workload import BenchRequest

TOKEN = {"choices": [{"text": "x"}]}


class Handler(BaseHTTPRequestHandler):
    """Streams as many tokens as it is asked for, each with a chunk of its own."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.reply(200, self.server.models)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.log.append((self.server.name, body, self.headers.get("Authorization")))
        if body["model"] != "m":
            message = f"The model {body['model']!r} does not exist; there is m."
            self.reply(404, json.dumps({"error": {"message": message}}))
            return
        made = min(body["max_tokens"], self.server.most)
        events = [self.server.event] * made
        if self.server.counts:
            events.append({"choices": [], "usage": {"completion_tokens": made}})
        self.reply(200, "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")

    def reply(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def scripted(name="one", log=None, most=10**6, counts=True, models='{"data": [{"id": "m"}]}', event=TOKEN):
    """A server and its base URL. most: tokens it gives at the most. counts: whether it reports usage."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.name, server.most, server.counts, server.models, server.event = name, most, counts, models, event
    server.log = [] if log is None else log
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


SMALL = ("--num-prompts", 3, "--input-len", "4:9", "--output-len", "2:5", "--num-warmups", 1)
NO_SERVER = "http://127.0.0.1:9/v1"


def bench(capsys, *words):
    status = main(["bench", *map(str, words)])
    return status, capsys.readouterr()


def refused(capsys, *words):
    """What the parser says of words it does not take."""
    with pytest.raises(SystemExit) as end:
        main(["bench", *map(str, words)])
    assert end.value.code == 2
    return capsys.readouterr().err


def one_sentence(printed):
    lines = [line for line in printed.err.splitlines() if line.startswith("platform: error: ")]
    assert len(lines) == 1
    return lines[0]


# --- load --------------------------------------------------------------------------------------------


def load(*jobs, model="m", max_concurrency=None):
    return LoadPattern(model, jobs, [0.0] * len(jobs), 0.0, max_concurrency)


def test_every_request_asks_for_exactly_its_tokens_and_ignores_the_end_of_text():
    with scripted() as (server, url):
        outcome = send(OpenAIServer(url, "key"), load(BenchRequest((5, 6), 3), BenchRequest((7,), 2)))
    bodies = {tuple(body["prompt"]): body for _, body, _ in server.log}
    assert bodies.keys() == {(5, 6), (7,)}
    assert [bodies[prompt]["max_tokens"] for prompt in ((5, 6), (7,))] == [3, 2]
    assert all(body["ignore_eos"] and body["stream"] and body["temperature"] == 0 for body in bodies.values())
    assert {key for _, _, key in server.log} == {"Bearer key"}
    assert [trace.num_tokens for trace in outcome.checked().traces] == [3, 2]
    assert outcome.figures()["completed"] == 2


def test_a_server_that_does_not_count_has_its_chunks_counted():
    with scripted(counts=False) as (_, url):
        assert send(OpenAIServer(url), load(BenchRequest((5,), 4))).checked().traces[0].num_tokens == 4


def test_a_server_that_stops_early_cannot_be_compared():
    with scripted(most=2) as (_, url), pytest.raises(RemoteError, match="exactly 4 tokens was answered with 2"):
        send(OpenAIServer(url), load(BenchRequest((5,), 4))).checked()


def test_failed_requests_are_counted_and_reported_with_the_message_of_the_server():
    with scripted() as (_, url), pytest.raises(RemoteError, match="2 of 2 requests failed; the first: 404: The model"):
        send(OpenAIServer(url), load(BenchRequest((5,), 4), BenchRequest((6,), 4), model="other")).checked()


def test_an_answer_that_is_no_stream_of_chunks_is_a_failed_request():
    with (
        scripted(event={"text": "x"}) as (_, url),
        pytest.raises(RemoteError, match="not a stream of completion chunks"),
    ):
        send(OpenAIServer(url), load(BenchRequest((5,), 4))).checked()


def test_a_server_that_is_not_there_is_a_failed_request():
    with pytest.raises(RemoteError, match="1 of 1 requests failed"):
        send(OpenAIServer(NO_SERVER), load(BenchRequest((5,), 4))).checked()


def test_figures_are_of_the_traces():
    traces = [Trace([1.0, 1.5, 2.5], 3), Trace([3.0, 3.5], 2), Trace(error="gone")]
    figures = Outcome([BenchRequest((1,), 3), BenchRequest((1,), 2), BenchRequest((1,), 2)], traces, 4.0, 1.0).figures()
    assert (figures["completed"], figures["failed"]) == (2, 1)
    assert figures["output_tokens_per_s"] == 5 / 4
    assert figures["ttft_p50_ms"] == 2000
    assert figures["itl_p50_ms"] == 500
    assert figures["tpot_mean_ms"] == (750 + 500) / 2
    assert figures["client_cpu_percent"] == 25


# --- compare -----------------------------------------------------------------------------------------


def test_compare_sends_the_same_to_both_in_turns_and_prints_medians_and_ratios(capsys, tmp_path):
    log, file = [], tmp_path / "figures.json"
    with scripted("a", log) as (_, a), scripted("b", log) as (_, b):
        status, printed = bench(capsys, "compare", a, b, *SMALL, "--repeats", 3, "--output-json", file)
    assert status == 0
    assert [name for name, _, _ in log] == ["a", "b", *(["a"] * 3 + ["b"] * 3) * 3]
    prompts = [sorted(body["prompt"] for _, body, _ in log[i : i + 3]) for i in range(2, len(log), 3)]
    assert prompts[::2] == prompts[1::2]
    assert len({str(turn) for turn in prompts}) == 3
    written = json.loads(file.read_text())
    assert (written["a"], written["b"]) == ({"url": a, "model": "m"}, {"url": b, "model": "m"})
    assert len(written["runs"]) == 3
    row = written["medians"]["output_tokens_per_s"]
    runs = [(run["a"]["output_tokens_per_s"], run["b"]["output_tokens_per_s"]) for run in written["runs"]]
    assert row["a"] == sorted(a for a, _ in runs)[1]
    assert row["ratio"] == pytest.approx(row["b"] / row["a"])
    assert row["ratio_min"] == min(b / a for a, b in runs)
    assert "B / A" in printed.out
    assert "TTFT p99, ms" in printed.out


def test_one_server_under_both_names_never_gets_a_prompt_twice(capsys):
    with scripted() as (server, url):
        assert bench(capsys, "compare", url, url, *SMALL, "--repeats", 2, "--num-warmups", 0)[0] == 0
    prompts = [tuple(body["prompt"]) for _, body, _ in server.log]
    assert len(prompts) == len(set(prompts)) == 12


def test_the_ratio_is_that_of_medians_and_the_range_that_of_turns():
    assert Comparison.from_turns([1.0, 2.0, 4.0], [3.0, 2.0, 2.0]) == (2.0, 2.0, 1.0, 0.5, 3.0)


def test_compare_with_a_server_that_is_not_there_says_which(capsys):
    with scripted() as (_, url):
        status, printed = bench(capsys, "compare", url, NO_SERVER, *SMALL)
    assert status == 1
    assert f"B: No server responds at {NO_SERVER}" in one_sentence(printed)


def test_compare_with_an_unknown_model_says_where_and_what_there_is(capsys):
    with scripted() as (_, url):
        status, printed = bench(capsys, "compare", url, url, *SMALL, "--model-a", "other")
    assert status == 1
    assert f"A: other at {url}: 1 of 1 requests failed; the first: 404" in one_sentence(printed)
    assert "there is m." in one_sentence(printed)


def test_compare_with_something_that_is_no_api_says_so(capsys):
    with scripted(models="<html>") as (_, url):
        status, printed = bench(capsys, "compare", url, url, *SMALL)
    assert status == 1
    assert "does not answer as an OpenAI-compatible server" in one_sentence(printed)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://"])
def test_compare_wants_urls(capsys, url):
    assert f"{url!r} is not a URL such as http://" in refused(capsys, "compare", url, NO_SERVER)


# --- sweep -------------------------------------------------------------------------------------------


def test_sweep_prints_a_row_for_each_rate_and_never_sends_a_prompt_twice(capsys, tmp_path):
    file = tmp_path / "figures.json"
    with scripted() as (server, url):
        status, printed = bench(capsys, "sweep", "--url", url, *SMALL, "--rates", "1000,500", "--output-json", file)
    assert status == 0
    prompts = [tuple(body["prompt"]) for _, body, _ in server.log]
    assert len(prompts) == len(set(prompts)) == 1 + 2 * 3
    written = json.loads(file.read_text())
    assert [point["request_rate"] for point in written["points"]] == [500, 1000]
    assert all(point["completed"] == 3 and point["ttft_p99_ms"] > 0 for point in written["points"])
    assert "TTFT p99" in printed.out
    assert written["model"] == "m"


def test_a_failure_ends_the_sweep_with_a_sentence(capsys):
    with scripted(most=1) as (_, url):
        status, printed = bench(capsys, "sweep", "--url", url, *SMALL, "--rates", "500")
    assert status == 1
    assert "must know `ignore_eos`" in one_sentence(printed)


@pytest.mark.parametrize("rates", ["", "1,x", "0", "-1", "inf", "nan"])
def test_sweep_wants_rates_that_can_be_drawn(capsys, rates):
    assert f"--rates: {rates!r}" in refused(capsys, "sweep", f"--rates={rates}")


@pytest.mark.parametrize("words", [("--request-rate", 0), ("--num-prompts", 0), ("--max-concurrency", "x")])
def test_numbers_that_no_load_can_have_are_refused(capsys, words):
    assert words[0] in refused(capsys, "serve", *words)


# --- pictures ----------------------------------------------------------------------------------------


def size_of_png(file):
    """(width, height) in pixels."""
    head = file.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:])


def test_sweep_draws_its_curves(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "sweep.png"
    with scripted() as (_, url):
        words = ("--url", url, *SMALL, "--rates", "400,500,600", "--plot", file)
        assert bench(capsys, "sweep", *words)[0] == 0
    width, height = size_of_png(file)
    assert width > 1500 > height > 400
    assert file.stat().st_size > 20_000


def test_a_picture_has_a_title_and_labels_with_units(tmp_path):
    pytest.importorskip("matplotlib")
    panels = (
        Panel("tokens/s", {"output": [5.0, 8.0]}),
        Panel("ms", {"p50": [1.0, 90.0], "p99": [2.0, 900.0]}, log=True),
    )
    file = tmp_path / "two.svg"
    Picture("a title", "requests/s", [1.0, 2.0], panels).save(file)
    text = file.read_text()
    for word in ("a title", "requests/s", "tokens/s", "ms", "p50", "p99"):
        assert f"<!-- {word} -->" in text


def test_without_matplotlib_the_plot_flag_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    assert "pip install matplotlib" in refused(capsys, "sweep", "--plot", "x.png")


def test_a_picture_that_could_not_be_saved_is_refused_before_measuring(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    assert "must end with one of" in refused(capsys, "sweep", "--plot", "x.doc")
    assert "there is no folder" in refused(capsys, "sweep", "--plot", tmp_path / "none" / "x.png")
