"""The `platform` command: parsing in-process, commands that need models against one small server."""

import errno
import json
import os
import subprocess
from io import FileIO

import httpx
import pytest
from serving import command, serving

from quire.cli import main
from quire.commands import run_batch
from quire.commands.built_in import BUILT_IN
from quire.commands.start_banner import print_banner
from quire.errors import ConfigError
from quire.hooks.registry import load
from quire.server.process.started import StartedServer
from quire_testing.tiny import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(folder):
    with serving(f"tiny={folder}", "--num-pages", "200") as server:
        yield server


def run(capsys, *words):
    status = main([str(word) for word in words])
    return status, capsys.readouterr()


def test_help_lists_every_command(capsys):
    status, printed = run(capsys, "--help")
    assert status == 0
    for name in BUILT_IN:
        assert f"  {name} " in printed.out


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"usage: platform {name}" in capsys.readouterr().out


def test_help_lists_the_commands_of_every_bundled_plugin(capsys):
    _, printed = run(capsys, "--help")
    provided = load().by_hook("quire_commands")
    assert provided
    assert all(f"  {name:12} {command.help}" in printed.out for name, command in provided.items())
    assert run(capsys, "--plugins", "llama", "--help")[1].out == printed.out


def test_an_unknown_command_lists_those_there_are(capsys):
    status, printed = run(capsys, "sreve")
    assert status == 2
    assert "There is no command 'sreve'. Did you mean 'serve'? Commands: serve, chat" in printed.err


def test_an_unknown_plugin_is_one_line_on_stderr(capsys):
    status, printed = run(capsys, "plugins", "--plugins", "nope")
    assert status == 2
    assert printed.err.startswith("platform: error: There is no plugin 'nope'.")
    assert printed.err.count("\n") == 1


def test_plugins_lists_names_distributions_versions_and_records(capsys):
    status, printed = run(capsys, "plugins", "--json", "--plugins", "llama")
    assert status == 0
    rows = {row["name"]: row for row in json.loads(printed.out)}
    assert rows["llama"]["enabled"]
    assert not rows["qwen"]["enabled"]
    assert rows["llama"]["distribution"] == "quire-serve"
    architectures = rows["llama"]["records"]["quire_architectures"]
    assert architectures[0] == "LlamaForCausalLM"
    assert "LlamaModel" in architectures


def test_listing_plugins_imports_no_torch():
    code = "import sys; from quire.cli import main; main(['plugins']); print('torch' in sys.modules)"
    done = subprocess.run([command()[0], "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_doctor_says_for_every_op_what_runs_and_why_not_the_others(capsys):
    status, printed = run(capsys, "doctor", "--json", "--device", "cpu")
    report = json.loads(printed.out)
    assert status == 0
    assert {"paged_attention", "linear", "rms_norm"} <= {choice["op"] for choice in report["ops"]}
    for choice in report["ops"]:
        assert choice["chosen"]
        assert all(choice["others"].values())


def test_throughput_prints_a_table_with_the_waste_of_pages_and_writes_json(folder, tmp_path, capsys):
    figures = tmp_path / "figures.json"
    words = ("--num-prompts", 6, "--input-len", "5:20", "--output-len", "4:8", "--repeats", 1)
    status, printed = run(capsys, "bench", "throughput", *words, "--output-json", figures, folder)
    assert status == 0
    assert "kv_waste_percent" in printed.out
    written = json.loads(figures.read_text())
    assert written["requests"] == 6
    assert 0 <= written["kv_waste_percent"] < 100


def test_latency_prints_percentiles(folder, capsys):
    words = ("--input-len", 8, "--output-len", 4, "--num-iters", 2, "--num-iters-warmup", 1)
    status, printed = run(capsys, "bench", "latency", *words, folder)
    assert status == 0
    assert "latency_p99_s" in printed.out


def test_embed_bench_measures_a_pooler(folder, tmp_path, capsys):
    figures = tmp_path / "figures.json"
    words = ("--num-prompts", 5, "--input-len", "3:9", "--repeats", 1, "--output-json", figures, "--num-pages", 50)
    status, printed = run(capsys, "bench", "embed", *words, "--pooling-task", "token_embed", folder)
    assert status == 0
    assert "prompt_tokens_per_s" in printed.out
    found = json.loads(figures.read_text())
    assert found["requests"] == 5
    assert found["requests_per_s"] == pytest.approx(5 / found["elapsed_s"])
    status, printed = run(capsys, "bench", "embed", "--num-prompts", 1, "--pooling-task", "classify", folder)
    assert status == 2
    assert "It can do: generate, embed, token_embed" in printed.err


def test_serve_bench_measures_a_running_server(server, tmp_path, capsys):
    figures = tmp_path / "figures.json"
    words = ("--num-prompts", 5, "--input-len", "5:9", "--output-len", "3:6", "--request-rate", 200)
    status, _ = run(capsys, "bench", "serve", "--url", f"{server.url}/v1", *words, "--output-json", figures)
    written = json.loads(figures.read_text())
    assert status == 0
    assert (written["completed"], written["failed"]) == (5, 0)
    assert written["output_tokens_per_s"] > 0


def test_startup_bench_starts_a_server_and_asks_it(folder, capsys):
    status, printed = run(capsys, "bench", "startup", "--num-iters", 1, "--", f"tiny={folder}", "--num-pages", 50)
    assert status == 0
    assert "ready_p50_s" in printed.out


def test_chat_and_complete_talk_to_a_running_server(server, capsys):
    for name in ("chat", "complete"):
        words = ("--url", f"{server.url}/v1", "-q", "hi", "--max-tokens", 5, "--temperature", 0, "--stats")
        status, printed = run(capsys, name, *words)
        assert status == 0
        assert " tokens, " in printed.out


def test_run_batch_answers_good_lines_and_says_what_is_wrong_with_the_others(folder, tmp_path, capsys):
    lines = [
        {"custom_id": "good", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 3}},
        {"custom_id": "refused", "url": "/v1/completions", "body": {"prompt": "x", "temperature": -1}},
        {"custom_id": "url", "url": "/health", "body": {}},
        {"custom_id": "method", "method": "GET", "url": "/v1/completions", "body": {}},
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join([*map(json.dumps, lines), "no json", ""]))
    status, printed = run(capsys, "run-batch", f"tiny={folder}", "--num-pages", 50, "-i", source, "-o", target)
    assert status == 1
    assert "5 requests, 4 failed" in printed.err
    answers = {answer["custom_id"]: answer for answer in map(json.loads, target.read_text().splitlines())}
    assert answers["good"]["response"]["body"]["usage"]["completion_tokens"] == 3
    assert answers["refused"]["response"]["status_code"] == 400
    assert answers["url"]["error"]["param"] == "url"
    assert answers["method"]["error"]["param"] == "method"
    assert answers[None]["error"]["message"].startswith("The line is not JSON")


def test_run_batch_needs_a_file_that_can_be_read(tmp_path, capsys):
    status, printed = run(capsys, "run-batch", "-i", tmp_path / "none", "-o", tmp_path / "out")
    assert status == 2
    assert "cannot be read" in printed.err


def test_a_config_file_starts_several_models(folder, tmp_path):
    file = tmp_path / "quire.yaml"
    file.write_text(
        f"num-pages: 50\napi_key: [secret]\nmodels:\n"
        f"  - {{name: one, model: {folder}, max_model_len: 64}}\n  - {{name: two, model: {folder}}}\n"
    )
    with serving("--config", file) as server:
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        cards = httpx.get(f"{server.url}/v1/models", headers={"Authorization": "Bearer secret"}).json()["data"]
        assert [(card["id"], card["max_model_len"]) for card in cards] == [("one", 64), ("two", 512)]


class FullDisk(FileIO):
    """A file that has room for some bytes only."""

    room = 50

    def write(self, content):
        part = bytes(content)[: max(self.room - self.tell(), 0)]
        if not part:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(part)


def test_results_that_do_not_fit_on_the_disk_end_run_batch_after_a_whole_line(tmp_path):
    with FullDisk(tmp_path / "out", "w") as output:
        run_batch._write(output, b"first line\n")
        with pytest.raises(ConfigError, match=r"--output-file .*out cannot be written: No space left on device"):
            run_batch._write(output, b"second " * 10)
        run_batch._write(output, b"third line\n")  # of a request that ended meanwhile
    assert (tmp_path / "out").read_text() == "first line\nthird line\n"


def test_a_server_starts_though_its_output_cannot_be_written(monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("builtins.print", full)
    nothing = {"models": (), "adapters": (), "pages": frozenset(), "chats": frozenset()}
    print_banner(StartedServer(url="http://127.0.0.1:8000", requires_key=False, **nothing))


def test_doctor_says_what_would_build_a_model_and_what_its_sequences_take(tmp_path, capsys):
    config = {"hidden_size": 64, "num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 1, "vocab_size": 99}
    found = {}
    for name, kind in (("Mamba2ForCausalLM", "mamba2"), ("RwkvForCausalLM", "rwkv"), ("PhimoeForCausalML", "phimoe")):
        (tmp_path / kind).mkdir()
        text = json.dumps({"architectures": [name], "model_type": kind, **config})
        (tmp_path / kind / "config.json").write_text(text)
        assert main(["doctor", "--json", "--model", str(tmp_path / kind)]) == 0
        found[kind] = json.loads(capsys.readouterr().out)
    assert found["mamba2"]["built by"] == "the plugin mamba, as Mamba2ForCausalLM"
    assert found["mamba2"]["KV cache"] == "none"
    assert found["mamba2"]["state"].endswith("per sequence and per checkpoint")
    assert "slots for sequences" in found["mamba2"]["state slots"]
    assert "for checkpoints, every" in found["mamba2"]["state slots"]
    assert "not in transformers' cache class" in found["rwkv"]["not built"]
    assert "PhimoeForCausalML" in found["phimoe"]["not built"]
