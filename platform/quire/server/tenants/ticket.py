"""What one HTTP request of a tenant may still use, from its admission to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from quire.params.pooling import PoolingParams
from quire.server.tenants.meter import Meter
from quire.server.tenants.tenant import Caller
from quire.types import Request


@dataclass(frozen=True)
class Ticket:
    """caller: who sent the request. meters: whose limits per minute its tokens count for; () in the background.

    count_month: counts tokens of prompts and answers when they have been used.
    """

    caller: Caller
    meters: tuple[Meter, ...]
    count_month: Callable[[int], None]

    def admit(self, requests: Sequence[Request]) -> Sequence[Request]:
        """The engine requests as the tenant may send them. Takes the tokens of their prompts.

        Raises `RateLimited` and `BadRequest`.
        """
        num_tokens = prompt_tokens(requests)
        for meter in self.meters:
            meter.check_tokens(num_tokens)
        self._take(num_tokens)
        return [self._adapted(request) for request in requests]

    def _adapted(self, request: Request) -> Request:
        caller, params, limit = self.caller, request.params, self.caller.max_context
        if limit is not None and not isinstance(params, PoolingParams) and params.max_tokens is None:
            params = replace(params, max_tokens=limit - len(request.prompt.token_ids))
        priority, weight = max(request.priority, caller.priority_ceiling), caller.tenant.weight
        if (params, priority, weight) == (request.params, request.priority, request.weight):
            return request
        return replace(request, params=params, priority=priority, weight=weight)

    @contextmanager
    def running(self, requests: Sequence[Request], num_generated: Callable[[], int]) -> Iterator[None]:
        """While admitted requests run; then the tokens of their answers are taken, or those of their prompts given back
        if they failed without an answer."""
        failed = False
        try:
            yield
        except Exception:
            failed = True
            raise
        finally:
            generated, prompt = num_generated(), prompt_tokens(requests)
            if failed and not generated:
                self._take(-prompt)
            else:
                self._take(generated)
                self.count_month(prompt + generated)

    def _take(self, num_tokens: int) -> None:
        for meter in self.meters:
            if meter.tokens is not None:
                meter.tokens.take(num_tokens)


def prompt_tokens(requests: Sequence[Request]) -> int:
    return sum(len(request.prompt.token_ids) for request in requests)


CURRENT: ContextVar[Ticket | None] = ContextVar("quire_ticket", default=None)
"""The ticket of the HTTP request that the current task serves; None for one without a key of the key file. A context
variable, because routes of plugins start engine requests without passing on the HTTP request."""


def current_caller() -> Caller | None:
    ticket = CURRENT.get()
    return None if ticket is None else ticket.caller


def may_use_model(name: str) -> bool:
    """Whether the sender of the current request may use a model by this name."""
    caller = current_caller()
    return caller is None or caller.may_use_model(name)


def may_use_adapter(name: str) -> bool:
    """Whether the sender of the current request may use this adapter."""
    caller = current_caller()
    return caller is None or caller.may_use_adapter(name)
