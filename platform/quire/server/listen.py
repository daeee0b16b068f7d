"""Where the server listens: its address, its socket, its TLS files. It knows no HTTP, and needs no large library."""

from __future__ import annotations

import errno
import socket
import ssl

from quire.errors import ConfigError
from quire.server_config import ServerConfig


def bind(config: ServerConfig) -> socket.socket:
    """A socket bound to the server's address, not yet listening; `ConfigError` if that cannot be."""
    try:
        found = socket.getaddrinfo(config.host or None, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"--host {config.host!r} is no address to listen on: {error}.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        hint = " Another --port may be free; 0 takes any." if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"Cannot listen on {config.host}:{config.port}: {error.strerror}.{hint}") from error
    return listener


def url_of(listener: socket.socket, config: ServerConfig) -> str:
    """Where clients find the server."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if config.ssl_certfile else 'http'}://{host}:{port}{config.root_path}"


def check_tls(config: ServerConfig) -> None:
    """`ConfigError` unless the TLS files can be used."""
    if config.ssl_certfile is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
        if config.ssl_ca_certs:
            context.load_verify_locations(config.ssl_ca_certs)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"The TLS files cannot be used: {error}.") from error
