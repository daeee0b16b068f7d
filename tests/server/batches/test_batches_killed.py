"""A server that is killed twice in the middle of a batch: no answer is lost, and none is there twice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from batch_rig import answers, ended, running
from fake_client import PretendClient

NUM_LINES = 300
HELPERS = Path(__file__).parents[2] / "helpers"

SERVER = f"""
import asyncio, sys
from pathlib import Path
from batch_rig import begin, request, running

async def main():
    async with running(Path(sys.argv[1]), concurrency=8) as client:
        batches = [batch async for batch in client.batches.list()]
        batch = batches[0] if batches else await begin(client, [request(f"r{{i}}") for i in range({NUM_LINES})])
        while True:
            print((await client.batches.retrieve(batch.id)).request_counts.completed, flush=True)

asyncio.run(main())
"""


def run_until(folder, completed):
    """Run a server until so many lines are answered, then kill it; returns the first and the last count."""
    words = [sys.executable, "-c", SERVER, str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(HELPERS / folder) for folder in ("fakes", "loads"))}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        counts = []
        for line in process.stdout:
            counts.append(int(line))
            if counts[-1] >= completed:
                break
        process.kill()
    assert counts, "the server ended by itself"
    return counts[0], counts[-1]


@pytest.mark.process
async def test_a_server_that_is_killed_loses_no_answer_and_repeats_none(tmp_path):
    _, first = run_until(tmp_path, 50)
    begin, second = run_until(tmp_path, 150)
    assert begin >= first, "what was answered stays answered"
    pretend = PretendClient(reply="Hello")
    async with running(tmp_path, pretend) as client:
        (batch,) = [batch async for batch in client.batches.list()]
        done = await ended(client, batch)
        assert (done.status, done.request_counts.completed) == ("completed", NUM_LINES)
        found = await answers(client, done.output_file_id)
        assert list(found) == [f"r{i}" for i in range(NUM_LINES)]
        assert len(pretend.requests) <= NUM_LINES - second, "answered lines are not sent again"
        assert [file.purpose async for file in client.files.list(order="asc")] == ["batch", "batch_output"]
