"""Every file in examples/ that can be run is run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from serving import serving

EXAMPLES = Path(__file__).parent.parent / "examples"

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


def test_offline_generates_chats_and_searches_with_beams():
    *texts, question, first, second, third = run("offline.py")
    assert len(texts) == 2
    assert "42" in question.split("->")[1]
    scores = [float(line.split()[0]) for line in (first, second, third)]
    assert scores == sorted(scores, reverse=True)


def test_chat_client_holds_a_conversation_with_the_openai_package():
    with serving() as server:
        first, second = run("chat_client.py", f"{server.url}/v1")
    assert "42" in first
    assert second.index("7") < second.index("19") < second.index("31")
