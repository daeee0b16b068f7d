"""What the routes of `/v1/responses` do."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import Request
from starlette.responses import Response

from quire.plugin import BadRequest, NotFound, NotSupported, RouterContext
from quire_apis.responses import OPTIONS
from quire_apis.responses.background import BackgroundRuns
from quire_apis.responses.chat_body import ENCRYPTED_REASONING
from quire_apis.responses.draft import new_response
from quire_apis.responses.prompts import begin_answer, read_prompt
from quire_apis.responses.runs import Asked, ResponseRun, error_event, kept_events
from quire_apis.responses.schemas import ResponseRequest, TokenCountRequest
from quire_apis.responses.storage.store import Store
from quire_apis.responses.writing.output import OutputSettings
from quire_apis.responses_of_routes import whole_answer

Json = dict[str, Any]


class ResponsesApi:
    """Makes responses with the models of a server, and gives those that are stored."""

    def __init__(self, context: RouterContext) -> None:
        """Raises `ConfigError` for a file that cannot be used."""
        self.context = context
        self.store = Store({option.name: option.default for option in OPTIONS} | dict(context.options))
        self._background = BackgroundRuns()

    async def close(self) -> None:
        """End what is running, and close the store."""
        await self._background.close()
        await self.store.close()

    def owner(self, request: Request) -> str:
        """The client whose responses a request may use: its tenant or API key; all clients share theirs if there are no
        keys."""
        client = self.context.client_of(request)
        return "" if client.startswith("address:") else client

    async def create(self, request: Request) -> Response:
        """The response, or the stream of its events."""
        fields = await self.context.read(request, ResponseRequest)
        stores = fields.store and self.store.is_on
        if fields.background and not stores:
            raise BadRequest("`background` needs `store`.", "background")
        owner = self.owner(request)
        prompt = await read_prompt(self.store, owner, fields)
        answer = await begin_answer(self.context, request, fields, prompt)
        reasoning = fields.reasoning
        asked = Asked(
            owner=owner,
            input=prompt.own,
            answer=answer,
            settings=OutputSettings(
                tools=prompt.tools.by_name,
                has_summary=bool(reasoning and (reasoning.summary or reasoning.generate_summary)),
                has_sealed=ENCRYPTED_REASONING in (fields.include or ()),
            ),
            conversation=fields.conversation_id,
            stores=stores,
        )
        response = new_response(fields, answer.model, fields.conversation_id)
        run = ResponseRun(self.store, asked, {**response, "store": stores})
        if fields.background:
            started = await self._background.start(owner, run)
            if fields.stream:
                return await self.context.stream(request, started.events(-1), error_event)
            return await whole_answer(self.context, request, _value(run.response))
        if fields.stream:
            return await self.context.stream(request, run.make(), error_event)
        return await whole_answer(self.context, request, _made(run))

    async def count(self, request: Request) -> Response:
        """The number of tokens of a prompt."""
        fields = await self.context.read(request, TokenCountRequest)
        prompt = await read_prompt(self.store, self.owner(request), fields)
        answer = await begin_answer(self.context, request, fields, prompt)
        found = {"object": "response.input_tokens", "input_tokens": answer.usage().prompt}
        return await whole_answer(self.context, request, _value(found))

    async def retrieve(self, request: Request, id: str) -> Json:
        """A response as it is now."""
        owner = self.owner(request)
        running = self._background.get(owner, id)
        if running is not None:
            return running.run.response
        return await self._stored(owner, id)

    async def replay(self, request: Request, id: str, after: int) -> Response:
        """The stream of the events of a background response, those with sequence numbers greater than `after`."""
        owner = self.owner(request)
        running = self._background.get(owner, id)
        if running is not None:
            return await self.context.stream(request, running.events(after), error_event)
        data = None
        if (await self._stored(owner, id))["background"]:
            data = await self.store.run(lambda database: database.events(owner, id))
        if data is None:
            raise BadRequest("Only the events of responses that were made in the background are kept.", "stream")
        return await self.context.stream(request, _replayed(data, after), error_event)

    async def cancel(self, request: Request, id: str) -> Json:
        """Cancel a response that is made in the background; one that has ended stays as it is."""
        owner = self.owner(request)
        running = self._background.get(owner, id)
        if running is not None:
            await running.stop(None)
            return running.run.response
        found = await self._stored(owner, id)
        if not found["background"]:
            raise BadRequest("Only a response that is made in the background can be cancelled.", "response_id")
        return found

    async def delete(self, request: Request, id: str) -> Json:
        """Delete a response; one that is made in the background is cancelled first."""
        owner = self.owner(request)
        running = self._background.get(owner, id)
        if running is not None:
            await running.stop(None)
        if not self.store.is_on or not await self.store.run(lambda database: database.delete(owner, "response", id)):
            raise _not_found(id)
        return {"id": id, "object": "response", "deleted": True}

    async def input_items(self, request: Request, id: str, after: str | None, limit: int, order: str) -> Json:
        """Items of the input of a response."""
        await self._stored(self.owner(request), id)
        return await item_page(self.store, id, after, limit, order)

    async def _stored(self, owner: str, id: str) -> Json:
        found = None
        if self.store.is_on:
            found = await self.store.run(lambda database: database.get(owner, "response", id))
        if found is None:
            raise _not_found(id)
        return found


async def item_page(store: Store, holder: str, after: str | None, limit: int, order: str) -> Json:
    """A page of the items of a response's input or of a conversation. Raises `BadRequest` for an unknown `after`."""
    page = await store.run(lambda database: database.page(holder, after, limit, order == "desc"))
    if page is None:
        raise BadRequest(f"There is no item {after!r:.100} to begin after.", "after")
    return item_list(page.items, page.has_more)


def item_list(items: Any, has_more: bool = False) -> Json:
    """The list object of these items."""
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {"first_id": None, "last_id": None}
    return {"object": "list", "data": items, **ends, "has_more": has_more}


def need_store(store: Store) -> None:
    """Raise `NotSupported` on a server that stores nothing."""
    if not store.is_on:
        raise NotSupported("This server stores no conversations (--responses.max-stored is 0).")


def _not_found(id: str) -> NotFound:
    return NotFound(f"The response {id!r:.100} is not stored.", "response_id")


async def _value(value: Json) -> Json:
    return value


async def _made(run: ResponseRun) -> Json:
    """The response at its end. Raises what it failed with."""
    async with aclosing(run.make()) as events:
        async for _ in events:
            pass
    if run.error is not None:
        raise run.error
    return run.response


async def _replayed(data: bytes, after: int) -> AsyncGenerator[bytes, None]:
    for event in kept_events(data, after):
        yield event
