"""A web server on this machine that gives media, good and bad, for tests."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        web = self.server.web
        web.asked.append((self.headers["Host"], self.path))
        web.headers = dict(self.headers)
        kind, _, rest = self.path[1:].partition("/")
        serve = {name: getattr(self, f"_{name}") for name in ("file", "to", "loop", "endless", "slow", "short")}
        with contextlib.suppress(OSError):  # the client may have had enough
            serve.get(kind, self._status)(rest)

    def _file(self, name):
        self._answer(200, self.server.web.files[name])

    def _to(self, target):
        self._answer(302, b"", Location=self.server.web.targets[target])

    def _loop(self, rest):
        self._answer(302, b"", Location=f"/loop/{int(rest) + 1}")

    def _status(self, rest):
        self._answer(int(rest or 404), b"<html>no</html>")

    def _endless(self, _):
        self._begin()
        while True:
            self.wfile.write(b"x" * 4096)

    def _slow(self, _):
        self._begin()
        self.wfile.write(b"x")
        self.wfile.flush()
        self.server.web.over.wait(60)

    def _short(self, _):
        self.send_response(200)
        self.send_header("Content-Length", "10")
        self.end_headers()
        self.wfile.write(b"x")
        self.close_connection = True

    def _begin(self):
        self.close_connection = True
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()

    def _answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in {**headers, **self.server.web.more, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def finish(self):
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *_):
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # with five, as usual, the sixth client at once waits a second


@contextlib.contextmanager
def web_of_media(tls=None):
    """`.url` of the server; its `.files` and `.targets` of redirects by name, `.more` headers; what was `.asked`.

    tls: an ssl.SSLContext.
    """
    with _Server(("127.0.0.1", 0), _Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        port = server.server_address[1]
        web = SimpleNamespace(
            url=f"http://127.0.0.1:{port}",
            port=port,
            files={},
            targets={},
            more={},
            headers={},
            asked=[],
            over=threading.Event(),
        )
        server.web = web
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield web
        finally:
            web.over.set()
            server.shutdown()
            thread.join()
