"""A server with OpenAI's routes whose every answer is the two words `hello world`."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        self.reply(200, json.dumps({"data": [{"id": "m"}]}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append((self.path, body, self.headers.get("Authorization")))
        if body["model"] != "m":
            self.reply(404, json.dumps({"error": {"message": "no such model"}}).encode())
            return
        chat = "messages" in body
        events = [{"choices": [{"delta": {"content": w}} if chat else {"text": w}]} for w in ("hello", " world")]
        events.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
        if body.get("temperature") == 2:
            events[1] = {"error": {"message": "the host died"}}
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self.reply(200, "".join([": keep-alive\n\n", *lines, "data: [DONE]\n\n"]).encode())

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def greeting_server():
    """The server, which keeps (path, body, key) of each request in `bodies`, and the URL of its API."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.bodies = []
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
