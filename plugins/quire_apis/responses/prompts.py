"""What a response continues: the items before it, those of its request, and the answer of the model to both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from quire.plugin import Answer, BadRequest, NotFound, PromptTooLong, RouterContext
from quire_apis.responses.chat_body import chat_body, tools_of
from quire_apis.responses.draft import RUNNING
from quire_apis.responses.items import Item, input_items, references
from quire_apis.responses.messages import SYSTEM_ROLES, without_first
from quire_apis.responses.schemas import PromptFields
from quire_apis.responses.storage.store import Store
from quire_apis.responses.tools import Tools

ROOM = 256
"""Tokens that truncation leaves for an answer whose length is not given."""


@dataclass(frozen=True, slots=True)
class RequestPrompt:
    """The items that a request continues, its own items, and all its tools."""

    before: Sequence[Item]
    own: Sequence[Item]
    tools: Tools

    @property
    def items(self) -> list[Item]:
        return [*self.before, *self.own]


async def read_prompt(store: Store, owner: str, fields: PromptFields) -> RequestPrompt:
    """The prompt of a request of the client `owner`. Raises `BadRequest` and `NotFound`."""
    if fields.previous_response_id is not None and fields.conversation is not None:
        raise BadRequest("`previous_response_id` and `conversation` exclude each other.", "conversation")
    named: dict[str, Item] = {}
    for id in references(fields.input):
        found = await store.run(lambda database, id=id: database.item(owner, id)) if store.is_on else None  # type: ignore[misc]
        if found is None:
            raise BadRequest(f"The item {id!r:.100} is not stored.", "input")
        named[id] = found
    own = input_items(fields.input, named.__getitem__)
    before = await _before(store, owner, fields)
    return RequestPrompt(before, own, tools_of(fields, [*before, *own]))


async def _before(store: Store, owner: str, fields: PromptFields) -> list[Item]:
    id = fields.previous_response_id
    if id is not None:
        chain = await store.run(lambda database: database.chain(owner, id)) if store.is_on else None
        if chain is None:
            raise BadRequest(f"The previous response {id!r:.100} is not stored.", "previous_response_id")
        if chain[-1][0] in RUNNING:
            raise BadRequest(f"The previous response {id!r:.100} is not complete yet.", "previous_response_id")
        return [item for _, items in chain for item in items]
    conversation = fields.conversation_id
    if conversation is None:
        return []
    items = await store.run(lambda database: database.conversation(owner, conversation)) if store.is_on else None
    if items is None:
        raise NotFound(f"The conversation {conversation!r:.100} does not exist.", "conversation")
    return items


async def begin_answer(context: RouterContext, request: Request, fields: PromptFields, prompt: RequestPrompt) -> Answer:
    """The answer to a prompt. Without truncation, an answer of `max_output_tokens` that would not fit into the context
    may fill the context instead.
    """
    items = prompt.items
    if fields.truncation == "auto":
        items = await _truncated(context, request, fields, prompt)
    body = chat_body(fields, items, prompt.tools)
    try:
        return await context.chat(request, body)
    except BadRequest as error:
        if error.param != "max_tokens" or body.pop("max_completion_tokens", None) is None:
            raise
        return await context.chat(request, body)


async def _truncated(
    context: RouterContext, request: Request, fields: PromptFields, prompt: RequestPrompt
) -> list[Item]:
    """The items without as few from their beginning as possible, so that the answer has room.

    System messages stay, and the last item; if it does not fit, the answer is refused.
    """

    async def fits(count: int) -> bool:
        body = chat_body(fields, without_first(prompt.items, count), prompt.tools)
        try:
            await context.chat(request, {"max_completion_tokens": ROOM, **body})
        except PromptTooLong:
            return False
        except BadRequest as error:
            if error.param != "max_tokens":
                raise
            return False
        return True

    if await fits(0):
        return prompt.items
    fewest, most = 1, max(0, sum(item.get("role") not in SYSTEM_ROLES for item in prompt.items) - 1)
    while fewest < most:
        count = (fewest + most) // 2
        if await fits(count):
            most = count
        else:
            fewest = count + 1
    return without_first(prompt.items, most)
