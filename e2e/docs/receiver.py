"""The receiver of the examples. Its responses depend only on the path.

    /ok      200                     /refuse  489 with Upstash-NonRetryable-Error: true
    /fail    500                     /busy    503 with Retry-After: 30
    /flaky   500 twice, then 200     /slow    nothing, until the sender gives up
    any other path: 200
"""

import select
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: /slow also ends, so that a forgotten sender holds no resources forever.
SLOW_SECONDS = 60


class Receiver:
    """A receiver on 127.0.0.1, in threads of this process."""

    def __init__(self, port=0):
        ThreadingHTTPServer.allow_reuse_address = True
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        self._server.daemon_threads = True
        self._server.arrived = []
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def headers_at(self, path):
        """The headers of the requests to a path, in order."""
        return [headers for arrived, headers in list(self._server.arrived) if arrived == path]

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _receive(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        self.server.arrived.append((path, list(self.headers.items())))
        match path:
            case "/fail":
                self._answer(500, "out of order")
            case "/flaky" if int(self.headers.get("Upstash-Retried", 0)) < 2:
                self._answer(500, "not yet")
            case "/refuse":
                self._answer(489, "no such customer", ("Upstash-NonRetryable-Error", "true"))
            case "/busy":
                self._answer(503, "busy", ("Retry-After", "30"))
            case "/slow":
                select.select([self.connection], [], [], SLOW_SECONDS)
                self.close_connection = True
            case _:
                self._answer(200, "ok")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _receive

    def _answer(self, status, text, *headers):
        body = text.encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
