"""Deltas of a client's requests, to be read one after the other."""

import asyncio

END = object()


async def deltas_of(client, model, *requests):
    """Runs the requests; leaving early ends them."""
    queue = asyncio.Queue()
    running = asyncio.ensure_future(client.run(model, requests, queue.put_nowait))
    running.add_done_callback(lambda _: queue.put_nowait(END))
    try:
        while (delta := await queue.get()) is not END:
            yield delta
        running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
