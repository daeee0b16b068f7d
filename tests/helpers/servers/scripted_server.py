"""The real application over a client that says what a script says, asked with the `openai` client."""

import contextlib

import httpx
import openai
from fake_client import PretendClient, info, pretend_app

from quire.records import GrammarBackend, LogitsProcessor, Registry
from quire.settings.server_config import ServerConfig

TALK = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "{% endfor %}"
    "{% if tools %}{{ tools | length }} tools{% endif %}[assistant]{{ opening }}"
)
KINDS = frozenset({"calls", "structural_tag", "json_schema", "json_object"})
REGISTRY = Registry(
    records={
        "quire_grammar_backends": {"pretend": GrammarBackend("pretend", KINDS, lambda context: None)},
        "quire_logits_processors": {"limit": LogitsProcessor("limit", {"reasoning_limit": dict}, lambda context: None)},
    }
)


class Scripted(PretendClient):
    """Answers the i-th request with the i-th reply, and then the last for ever."""

    def __init__(self, *replies, per_step=1):
        super().__init__(info(max_model_len=1 << 16), per_step=per_step)
        self.replies = [reply.encode() for reply in replies]

    async def generate(self, model, request):
        self.reply = self.replies[min(len(self.requests), len(self.replies) - 1)]
        self.ends_after = len(self.reply)
        async for deltas in super().generate(model, request):
            yield deltas

    def prompt(self, number=-1):
        """What the model was asked."""
        return bytes(i for i in self.requests[number].prompt.token_ids if i < 256).decode()


@contextlib.asynccontextmanager
async def talking(folder, pretend, registry=REGISTRY, template=TALK, settings=None, **served):
    """An `openai` client of a server with this client and template."""
    config = ServerConfig(**{"enable_auto_tool_choice": True, **(settings or {})})
    app = pretend_app(folder, pretend, config=config, registry=registry, template=template, **served)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        httpx.AsyncClient(transport=transport) as http,
        openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", max_retries=0, http_client=http) as client,
    ):
        yield client


async def streamed(client, **asked):
    """(content, reasoning, calls, finish reason, usage) of a stream, put together as the protocol says."""
    content, reasoning, calls, finish, usage = "", "", {}, None, None
    async for chunk in await client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, **asked
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning", None) or ""
            finish = choice.finish_reason or finish
            for part in choice.delta.tool_calls or ():
                first = part.index not in calls  # and then it says whose it is
                assert (part.id is not None, part.function.name is not None) == (first, first)
                call = calls.setdefault(part.index, {"id": part.id, "name": part.function.name, "arguments": ""})
                call["arguments"] += part.function.arguments or ""
    return content, reasoning, list(calls.values()), finish, usage
