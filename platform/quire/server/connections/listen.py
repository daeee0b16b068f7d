"""The server's listening socket: bind it, give its URL, check the TLS files."""

from __future__ import annotations

import errno
import socket
import ssl

from quire.errors import ConfigError
from quire.settings.server_config import ServerConfig


def bind(config: ServerConfig) -> socket.socket:
    """A socket bound to the server's address, not yet listening. Raises ConfigError if it cannot be bound."""
    try:
        found = socket.getaddrinfo(config.host or None, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"--host {config.host!r} is not an address to listen on: {error}.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        hint = " Another --port may be free; 0 takes any." if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"Cannot listen on {config.host}:{config.port}: {error.strerror}.{hint}") from error
    return listener


def url_of(listener: socket.socket, config: ServerConfig) -> str:
    """The URL under which clients reach the server."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if config.ssl_certfile else 'http'}://{host}:{port}{config.root_path}"


def check_tls(config: ServerConfig) -> None:
    """Raise ConfigError unless the TLS files can be loaded."""
    if config.ssl_certfile is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
        if config.ssl_ca_certs:
            context.load_verify_locations(config.ssl_ca_certs)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"The TLS files cannot be used: {error}.") from error
