"""Worker threads of the server: a bound on what waits, and nothing done for a client that is gone."""

import asyncio
import threading

import pytest

from quire.errors import Overloaded
from quire.server.process.workers import Workers


@pytest.fixture
def workers():
    made = Workers("testing", 1, max_waiting=1)
    yield made
    made.close()


async def test_more_than_may_wait_is_refused_at_once(workers):
    release = threading.Event()
    running = [asyncio.create_task(workers.run(lambda _: release.wait())) for _ in range(2)]
    await asyncio.sleep(0)  # both are submitted
    with pytest.raises(Overloaded):
        await workers.run(lambda _: None)
    release.set()
    assert await asyncio.gather(*running) == [True, True]
    assert await workers.run(lambda _: 3) == 3


async def test_what_waits_is_never_begun_when_its_client_is_gone(workers):
    release, done = threading.Event(), []
    first = asyncio.create_task(workers.run(lambda _: release.wait()))
    second = asyncio.create_task(workers.run(lambda _: done.append(1)))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    release.set()
    await first
    await workers.run(lambda _: None)
    assert done == []


async def test_what_runs_learns_that_it_is_not_wanted(workers):
    begun, ended = threading.Event(), threading.Event()

    def work(wanted):
        begun.set()
        while wanted():
            pass
        ended.set()

    task = asyncio.create_task(workers.run(work))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.to_thread(ended.wait)


async def test_an_error_of_the_work_is_raised(workers):
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda _: 1 // 0)


async def test_closed_workers_work_again_when_the_app_starts_again(workers):
    assert await workers.run(lambda _: 1) == 1
    workers.close()
    assert await workers.run(lambda _: 2) == 2
