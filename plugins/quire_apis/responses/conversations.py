"""What the routes of `/v1/conversations` do: lists of items that responses continue and add to."""

from __future__ import annotations

import time
from typing import Any

from fastapi import Request

from quire.plugin import NotFound
from quire_apis.responses.api import Json, ResponsesApi, item_list, item_page, need_store
from quire_apis.responses.items import Item, input_items, new_id
from quire_apis.responses.schemas import ConversationRequest, ConversationUpdate, ItemsRequest


class ConversationsApi:
    """Conversations in the store of the responses."""

    def __init__(self, responses: ResponsesApi) -> None:
        self._responses, self._store = responses, responses.store

    async def create(self, request: Request) -> Json:
        """Begin a conversation, with its first items if there are any."""
        need_store(self._store)
        fields = await self._responses.context.read(request, ConversationRequest)
        made: Json = {
            "id": new_id("conv"),
            "object": "conversation",
            "created_at": int(time.time()),
            "metadata": fields.metadata or {},
        }
        items, owner = input_items(fields.items), self._responses.owner(request)
        await self._store.run(lambda database: database.add(owner, "conversation", made, items))
        return made

    async def retrieve(self, request: Request, id: str) -> Json:
        """A conversation without its items."""
        owner = self._owner(request)
        return self._found(await self._store.run(lambda database: database.get(owner, "conversation", id)), id)

    async def update(self, request: Request, id: str) -> Json:
        """Replace the metadata of a conversation."""
        owner = self._owner(request)
        fields = await self._responses.context.read(request, ConversationUpdate)
        changes = {"metadata": fields.metadata or {}}
        return self._found(
            await self._store.run(lambda database: database.update(owner, "conversation", id, changes)), id
        )

    async def delete(self, request: Request, id: str) -> Json:
        """Delete a conversation with its items."""
        owner = self._owner(request)
        is_deleted = await self._store.run(lambda database: database.delete(owner, "conversation", id))
        self._found(is_deleted or None, id)
        return {"id": id, "object": "conversation.deleted", "deleted": True}

    async def add_items(self, request: Request, id: str) -> Json:
        """Add items to a conversation, and list them."""
        owner = self._owner(request)
        items = input_items((await self._responses.context.read(request, ItemsRequest)).items)
        is_added = await self._store.run(lambda database: database.append(owner, id, items))
        self._found(is_added or None, id)
        return item_list(items)

    async def items(self, request: Request, id: str, after: str | None, limit: int, order: str) -> Json:
        """Items of a conversation."""
        await self.retrieve(request, id)
        return await item_page(self._store, id, after, limit, order)

    async def item(self, request: Request, id: str, item_id: str) -> Item:
        """An item of a conversation."""
        owner = self._owner(request)
        return self._found(await self._store.run(lambda database: database.item(owner, item_id, id)), item_id, "item")

    async def delete_item(self, request: Request, id: str, item_id: str) -> Json:
        """Delete an item of a conversation, and return the conversation."""
        owner = self._owner(request)
        is_deleted = await self._store.run(lambda database: database.delete_item(owner, id, item_id))
        self._found(is_deleted or None, item_id, "item")
        return await self.retrieve(request, id)

    def _owner(self, request: Request) -> str:
        need_store(self._store)
        return self._responses.owner(request)

    def _found(self, value: Any, id: str, what: str = "conversation") -> Any:
        if value is None:
            raise NotFound(f"The {what} {id!r:.100} does not exist.", f"{what}_id")
        return value
