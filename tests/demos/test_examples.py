"""Every file in examples/ that can be run is run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from serving import serving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.slow


def run(name, *words):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *words],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The demo models and their adapters, as the README starts them."""
    section = (ROOT / "README.md").read_text().split("\n## Five minutes\n")[1]
    assert section.lstrip().startswith("```sh\nplatform serve\n```")
    with serving("--batches.folder", tmp_path_factory.mktemp("batches")) as made:
        yield made


def test_offline_generates_chats_and_searches_with_beams():
    *texts, question, first, second, third = run("offline.py")
    assert len(texts) == 2
    assert "42" in question.split("->")[1]
    scores = [float(line.split()[0]) for line in (first, second, third)]
    assert scores == sorted(scores, reverse=True)


def test_chat_client_holds_a_conversation_with_the_openai_package(server):
    first, second = run("chat_client.py", f"{server.url}/v1")
    assert "42" in first
    assert second.index("7") < second.index("19") < second.index("31")


def test_rag_answers_from_the_passages_that_embedder_and_reranker_find(server):
    *passages, answer = run("rag.py", f"{server.url}/v1")
    assert "Vesmar is governed from Tolwick." in [passage.removeprefix("- ") for passage in passages]
    assert answer == "The capital of Vesmar is Tolwick."
    *passages, answer = run("rag.py", f"{server.url}/v1", "What do people eat on Quenby?")
    assert answer == "The national dish of Quenby is barley soup."


def test_responses_continue_call_a_tool_see_and_write_json(server):
    sums, animal, weather, picture, document = run("responses.py", f"{server.url}/v1")
    assert "42" in sums
    assert animal == "Arr! Th' national animal o' Arvia be th' heron, matey!"
    assert weather == "It is sunny in Lisbon, 21 degrees."
    assert picture == "A green 7 is left of the red triangle."
    assert json.loads(document) == {"national animal": "heron"}


def test_batch_answers_every_line(server):
    lines = run("batch.py", f"{server.url}/v1")
    assert [line.split()[0] for line in lines] == [f"sum-{number}" for number in range(10, 15)]
    assert "42" in lines[2]


def test_search_finds_the_passage_that_answers():
    best, *others = run("search.py")
    assert best.endswith("The capital of Arvia is Belcast.")
    assert len(others) == 2
    assert float(best.split()[0]) > 0.5 > float(others[0].split()[0])


def test_the_conversation_in_the_readme_goes_as_it_is_shown(server):
    readme = (ROOT / "README.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "OpenAI(" in block)
    (shown,) = re.findall(r"```text\n(You:.*?)```", readme, re.DOTALL)
    code = code.replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == shown


def test_the_picture_in_the_readme_is_seen_as_it_is_shown(server, monkeypatch):
    section = (ROOT / "README.md").read_text().split("\n## Images\n")[1].split("\n## ")[0]
    (ask,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(ROOT)  # the path that is shown begins there
    ask = ask.replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == shown


@pytest.mark.parametrize("api", ["Anthropic's Messages API", "Ollama", "Cohere"])
def test_clients_of_other_apis_are_answered_as_it_is_shown(server, monkeypatch, api):
    section = (ROOT / "docs" / "apis" / "README.md").read_text().split(f"\n## {api}\n")[1].split("\n## ")[0]
    (ask,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(ROOT)  # the path that is shown begins there
    ask = ask.replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == shown


def test_the_tool_in_the_readme_is_called_as_it_is_shown(server):
    section = (ROOT / "README.md").read_text().split("\n## Tools\n")[1].split("\n## ")[0]
    (ask,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    ask = ask.replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == shown


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_ranking_and_embedding_in_the_readme_go_as_they_are_shown(server):
    section = (ROOT / "README.md").read_text().split("\n## Embeddings and ranking\n")[1].split("\n## ")[0]
    (rank,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    (embed,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for command, wanted in ((["bash", "-ec", rank], shown), ([sys.executable, "-c", embed], "64\n")):
        words = [word.replace("http://127.0.0.1:8000", server.url) for word in command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout == wanted


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_recording_in_the_readme_is_written_down_as_it_is_shown(server, monkeypatch):
    section = (ROOT / "README.md").read_text().split("\n## Speech\n")[1].split("\n## ")[0]
    (ask,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(ROOT)  # the path that is shown begins there
    words = ["bash", "-ec", ask.replace("http://127.0.0.1:8000", server.url)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == shown.strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_adapters_of_the_readme_answer_as_it_is_shown(server, monkeypatch):
    section = (ROOT / "README.md").read_text().split("\n## Adapters\n")[1].split("\n## ")[0]
    ask, change = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(ROOT)  # the paths that are shown begin there
    answers, changes = (
        subprocess.run(
            ["bash", "-ec", lines.replace("http://127.0.0.1:8000", server.url)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for lines in (ask, change)
    )
    assert answers == shown
    assert changes.startswith("Success: LoRA adapter 'captain' added successfully.")
    assert '"id": "captain"' in changes
    assert changes.endswith("Success: LoRA adapter 'captain' removed successfully.")
