"""Files in examples/ are run, and so are the blocks of code in the documentation that are not marked as not run."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from code_blocks import PAGES, code_blocks
from paths import ROOT
from serving import serving

EXAMPLES = ROOT / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.process]

DEMO_CHAT = ROOT / "plugins" / "quire_demos" / "demo_chat"
LINKS = {
    "examples": ROOT / "examples",
    "plugins": ROOT / "plugins",
    "my-model": DEMO_CHAT,
    "my-adapter": DEMO_CHAT / "adapters" / "pirate",
    "adapters/style": DEMO_CHAT / "adapters" / "pirate",
    "adapters/poems": DEMO_CHAT / "adapters" / "dutch",
    "talk.mp3": ROOT / "examples" / "demo_models" / "digits.wav",
}
"""What the blocks find in their folder."""

SERVED = {"my-embedder": "demo-embed", "my-classifier": "demo-rerank", "my-ranker": "demo-rerank"}
"""The demo model of each name that stands for a model of the reader."""

OF_PAGES = {"docs/apis/speech.md": {"my-model": "demo-whisper"}}
"""Names that stand for another demo model on one page."""

RUN_ELSEWHERE = ("docs/hooks.md",)
"""Pages whose blocks `tests/hooks/test_hooks.py` runs."""

RUN = ROOT / "tests" / "helpers" / "programs" / "run_code_blocks.py"


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
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("folder")
    (made / ".curlrc").write_text("fail-with-body")
    (made / "adapters").mkdir()
    for name, target in LINKS.items():
        (made / name).symlink_to(target)
    return made


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    """The demo models and their adapters, as the README starts them, in the folder of the blocks."""
    section = (ROOT / "README.md").read_text().split("\n## Five minutes\n")[1]
    assert "```sh\nplatform serve\n```" in section
    with chdir(folder), serving("--batches.folder", tmp_path_factory.mktemp("batches")) as made:
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


def test_rag_answers_from_the_passage_that_embedder_and_reranker_find(server):
    passage, answer = run("rag.py", f"{server.url}/v1")
    assert passage == "passage: Vesmar is governed from Tolwick."
    assert answer == "answer:  The capital of Vesmar is Tolwick."
    passage, answer = run("rag.py", f"{server.url}/v1", "What do people eat on Fenmar?")
    assert answer == "answer:  The national dish of Fenmar is barley soup."


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


def run_block(words, folder, text=None):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "PATH": path, "ADMIN_KEY": "none", "CURL_HOME": str(folder)}
    done = subprocess.run(words, capture_output=True, text=True, input=text, timeout=120, cwd=folder, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compare(block, said):
    if block.shown_is_cut:
        lines = iter(said.splitlines())
        assert all(line in lines for line in block.shown.splitlines()), f"{block.place}: {said}"
    elif block.shown:
        assert said.strip() == block.shown.strip(), block.place


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("page", [page for page in PAGES if page not in RUN_ELSEWHERE])
def test_blocks_do_what_the_page_says(page, folder, request):
    blocks = [block for block in code_blocks(page) if not block.why_not]
    served = {**SERVED, **OF_PAGES.get(page, {})}
    programs, commands = [], []
    for block in blocks:
        code = block.code
        for name, demo in served.items():
            code = code.replace(name, demo)
        if ":8000" in code:
            code = code.replace("http://127.0.0.1:8000", request.getfixturevalue("server").url)
        if block.file:
            (folder / block.file).write_text(code)
        if block.language == "python":
            programs.append((block, code))
        elif block.language == "sh":
            commands.append((block, code))
    for block, code in commands:
        compare(block, run_block(["bash", "-eo", "pipefail", "-c", code], folder))
    if programs:
        sources = json.dumps([(code, block.place) for block, code in programs])
        said = run_block([sys.executable, str(RUN)], folder, sources).split("\0\n")
        for (block, _), output in zip(programs, said[:-1], strict=True):
            compare(block, output)
