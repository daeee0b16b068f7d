"""How the server's process ends: by signals, when its models cannot be kept running, and whatever hangs."""

import os
import select
import signal
import time

import httpx
import pytest
from plugin_site import PluginSite
from serving import POLL_S, serving

from quire_testing.tiny import tiny_llama

pytestmark = pytest.mark.slow

HANGS = """
    import time

    class Exporter:
        def observe(self, stats):
            if stats.num_generated_tokens_total:
                time.sleep(600)

    @hookimpl
    def quire_metrics_exporters():
        yield MetricsExporter("hangs", build=lambda context: Exporter())

    @hookimpl
    def quire_request_finished(summary, options):
        time.sleep(600)

    @hookimpl
    def quire_engine_stopping(info, options):
        time.sleep(600)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def complete(server, max_tokens=2):
    body = {"prompt": "x", "max_tokens": max_tokens, "ignore_eos": True}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)


def ended(pid):
    """Whether a process ends; it may take its time to free what it had."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 60)[0])
    finally:
        os.close(handle)


def test_a_hangup_changes_nothing_and_a_server_whose_restarts_are_used_up_ends_with_status_1(model):
    with serving(model, "--num-pages", "64", "--max-restarts", "0") as server:
        server.process.send_signal(signal.SIGHUP)
        os.kill(server.engine_pid(), signal.SIGHUP)
        assert complete(server).status_code == 200
        os.kill(server.engine_pid(), signal.SIGKILL)
        assert server.process.wait(60) == 1
        assert "SIGHUP is ignored" in server.output()
        assert "exits with status 1: The engine process was killed by signal 9." in server.output()


@pytest.mark.usefixtures("fresh_processes")
def test_plugins_that_hang_do_not_hold_the_end(model, tmp_path):
    site = PluginSite(tmp_path)
    site.add("hangs", HANGS)
    flags = ("--num-pages", "64", "--plugins", "llama,hangs", "--shutdown-timeout-s", "1")
    with serving(model, *flags, env={"PYTHONPATH": str(tmp_path)}) as server:
        assert complete(server).status_code == 200
        assert server.stop(within_s=60) == 0  # what hangs takes ten minutes
        assert "is still busy with notifications; not waiting for it" in server.output()


def test_a_second_interrupt_ends_the_server_at_once_without_a_traceback(model):
    with serving(model, "--num-pages", "64", "--max-model-len", "512") as server:
        body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as reply:
            lines = reply.iter_lines()
            next(lines)
            host = server.engine_pid()
            os.kill(host, signal.SIGSTOP)  # so that the answer does not end before
            server.process.send_signal(signal.SIGINT)
            while "shutting down" not in server.output():
                assert server.process.poll() is None
                time.sleep(POLL_S)
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(60) == 130
            assert ended(host)
        assert "second signal (SIGINT)" in server.output()
        assert "Traceback" not in server.output()
