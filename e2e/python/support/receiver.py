"""An HTTP server that records its requests and responds by a script per path.

It is the witness of the tests: a message counts as delivered if it arrived here, not if the server says so.
"""

import os
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Dict, List, Optional, Union

from support.wait import PATIENCE_SECONDS, eventually

#: Delay of every response. `LATE_MS=50` finds tests that confuse an arrival with its outcome.
LATE_SECONDS = float(os.environ.get("LATE_MS", 0)) / 1000
#: Largest rounding difference of millisecond clocks.
ROUNDING_SECONDS = 0.01


@dataclass
class Answer:
    """A response of a path; `after` is awaited first."""

    status: int
    body: bytes = b""
    headers: Dict[str, str] = field(default_factory=dict)
    after: Optional[threading.Event] = None


@dataclass
class Arrival:
    """A request that has arrived in full."""

    method: str
    target: str
    headers: Dict[str, str]
    body: bytes
    #: When, in Unix seconds by this machine's clock.
    at: float

    @property
    def path(self) -> str:
        return self.target.split("?")[0]


class Receiver:
    def __init__(self) -> None:
        self.arrived: List[Arrival] = []
        self._scripts: Dict[str, List[Answer]] = {}
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}{path}"

    def script(self, path: str, *answers: Union[int, Answer]) -> None:
        """One response per request; the last one repeats. Paths without a script respond with 200."""
        self._scripts[path] = [Answer(answer) if isinstance(answer, int) else answer for answer in answers]

    def at(self, path: str) -> List[Arrival]:
        with self._lock:
            return [arrival for arrival in self.arrived if arrival.path == path]

    def arrivals(self, path: str, count: int = 1, patience: float = PATIENCE_SECONDS) -> List[Arrival]:
        """Waits until at least `count` requests have arrived at a path, and returns them."""
        return eventually(
            f"{count} requests at {path}",
            lambda: self.at(path) if len(self.at(path)) >= count else None,
            patience,
        )

    def bodies(self, path: str) -> List[str]:
        """The bodies that have arrived at a path, as texts."""
        return [arrival.body.decode() for arrival in self.at(path)]

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def record(self, arrival: Arrival) -> Answer:
        with self._lock:
            self.arrived.append(arrival)
            script = self._scripts.get(arrival.path, [Answer(200)])
            return script.pop(0) if len(script) > 1 else script[0]


def _handler_for(receiver: Receiver) -> type:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = receiver.record(Arrival(self.command, self.path, headers, body, time.time()))
            if answer.after is not None:
                answer.after.wait(PATIENCE_SECONDS * 2)
            time.sleep(LATE_SECONDS)
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def keeps_rate(arrivals: List[Arrival], rate: int, period: float, since: float) -> None:
    """Asserts, by the receiver's clock, that none of them is earlier than the rate allows if the first one was not sent
    before `since`. A busy machine sees requests late, and never early."""
    times = [arrival.at - since for arrival in arrivals]
    for n, at in enumerate(times):
        assert at >= n // rate * period - ROUNDING_SECONDS, times
