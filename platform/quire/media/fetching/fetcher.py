"""Fetches media over HTTP for untrusted users, safe against SSRF.

For each redirect, the host is looked up once, its address is checked, and the connection goes to that address; so a
name that resolves differently a moment later cannot lead into a private network. Responses are limited in bytes and
time, and their content type is ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

import httpx

from quire import __version__
from quire.errors import BadRequest, Unprocessable
from quire.media.fetching.addresses import Resolve, allowed_addresses, resolve as system_resolve
from quire.media.limits import Budget, MediaLimits

REDIRECTS = frozenset({301, 302, 303, 307, 308})
HEADERS = {"user-agent": f"quire/{__version__}", "accept": "*/*", "accept-encoding": "identity"}


class FetchTrace(Protocol):
    """The trace of one request. headers: tell the server that is asked which trace it belongs to."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    def answered(self, status: int) -> None:
        """The response has begun."""
        ...


TraceFetch: TypeAlias = Callable[[str, str, int], AbstractContextManager[FetchTrace]]
"""(scheme, host, port) → around a request to that server."""


@dataclass(frozen=True)
class _Untraced:
    """What takes the place of a trace."""

    headers: Mapping[str, str] = field(default_factory=dict)

    def answered(self, status: int) -> None:
        pass


def _untraced(_scheme: str, _host: str, _port: int) -> AbstractContextManager[FetchTrace]:
    return nullcontext(_Untraced())


class Fetcher:
    """Fetches http: and https: URLs within limits. Event loops and threads may share it.

    threads: run the DNS lookups. resolve: the DNS lookup, None = that of the system. trace: traces each request; only
    hosts that --allowed-media-domains names get its headers. Proxies of the environment are not used, because they
    would look up the names themselves.
    """

    def __init__(
        self,
        limits: MediaLimits,
        threads: Executor,
        resolve: Resolve | None = None,
        trace: TraceFetch | None = None,
    ) -> None:
        self._limits, self._threads, self._trace = limits, threads, trace or _untraced
        self._resolve = resolve or system_resolve
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, url: str, budget: Budget) -> bytes:
        """The body of the response. Its bytes are subtracted from the budget.

        Raises `BadRequest` for a URL that is refused, TooLarge, and Unprocessable if fetching fails.
        """
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                return await self._follow(_parse(url), budget)
        except TimeoutError:
            raise Unprocessable(
                f"Fetching the media URL took longer than {self._limits.timeout_s:g} seconds (--media-timeout-s)."
            ) from None

    async def _follow(self, url: httpx.URL, budget: Budget) -> bytes:
        for _ in range(self._limits.max_redirects + 1):
            async with self._response(url) as response:
                if response.status_code not in REDIRECTS:
                    return await _body(response, budget)
                target = response.headers.get("location")
            if not target:
                raise Unprocessable("The media URL redirects to nowhere.")
            url = _parse(target, url)
        raise Unprocessable(
            f"The media URL redirects more than {self._limits.max_redirects} times (--max-media-redirects)."
        )

    @contextlib.asynccontextmanager
    async def _response(self, url: httpx.URL) -> AsyncIterator[httpx.Response]:
        """The response to one request, with its body not yet read."""
        self._check_domain(url)
        port = url.port or (443 if url.scheme == "https" else 80)
        host = url.raw_host.decode("ascii")
        with self._trace(url.scheme, host, port) as trace:
            headers = trace.headers if self._limits.allowed_domains else {}
            async with self._connect(url, host, port, headers) as response:
                trace.answered(response.status_code)
                yield response

    @contextlib.asynccontextmanager
    async def _connect(
        self, url: httpx.URL, host: str, port: int, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        look_up = partial(allowed_addresses, host, port, self._resolve, self._limits.private_addresses)
        loop = asyncio.get_running_loop()
        addresses = await loop.run_in_executor(self._threads, look_up)
        if self._tls is None:
            self._tls = await loop.run_in_executor(self._threads, _context)
        async with httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False) as transport:
            response = await _send(transport, url, addresses, headers)
            try:
                yield response
            except httpx.HTTPError as error:
                raise Unprocessable(f"The media URL cannot be read: {_reason(error)}.") from error
            finally:
                await response.aclose()

    def _check_domain(self, url: httpx.URL) -> None:
        allowed = self._limits.allowed_domains
        hosts = {url.host.lower().rstrip("."), url.raw_host.decode("ascii").lower().rstrip(".")}
        if allowed and not hosts & allowed:
            raise BadRequest(
                f"The host {url.host!r:.120} of the media URL is not one of the allowed domains:"
                f" {', '.join(sorted(allowed))}."
            )


def _context() -> ssl.SSLContext:
    """A TLS context. Reading the certificate authorities takes a tenth of a second."""
    return httpx.create_ssl_context()


def _parse(url: str, base: httpx.URL | None = None) -> httpx.URL:
    """Parse a URL, which may be relative to `base`. Raises `BadRequest` for a URL that cannot be fetched."""
    try:
        parsed = base.join(url) if base else httpx.URL(url)
        parsed.host  # noqa: B018 - decodes Punycode, and raises for an invalid name
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise BadRequest(f"The media URL is not a URL: {error}.") from error
    if parsed.scheme not in ("http", "https"):
        raise BadRequest(f"The media URL redirects to the scheme {parsed.scheme!r:.40}; only http and https are.")
    if not parsed.raw_host or not 0 < (parsed.port or 80) < 1 << 16:
        raise BadRequest("The media URL has no host or an invalid port.")
    return parsed.copy_with(fragment=None)


async def _send(
    transport: httpx.AsyncHTTPTransport, url: httpx.URL, addresses: list[str], headers: Mapping[str, str]
) -> httpx.Response:
    """Send the request to the first address that accepts a connection, with the URL's host name for Host and TLS."""
    failure: httpx.HTTPError | None = None
    for address in addresses:
        request = httpx.Request(
            "GET",
            url.copy_with(host=address),
            headers={**headers, "host": url.netloc.decode("ascii"), **HEADERS},
            extensions={"sni_hostname": url.raw_host.decode("ascii")},
        )
        try:
            return await transport.handle_async_request(request)
        except httpx.ConnectError as error:
            failure = error
        except httpx.HTTPError as error:
            failure = error
            break
    raise Unprocessable(f"The host {url.host!r:.120} of the media URL does not answer: {_reason(failure)}.")


async def _body(response: httpx.Response, budget: Budget) -> bytes:
    if response.status_code != 200:
        raise Unprocessable(f"The server of the media URL answered {response.status_code}.")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise Unprocessable("The server of the media URL compressed its answer, though it was asked not to.")
    parts = []
    async for part in response.aiter_raw():
        budget.consume(len(part))
        parts.append(part)
    return b"".join(parts)


def _reason(error: Exception | None) -> str:
    return (str(error) or type(error).__name__)[:200].rstrip(".")
