"""The real binary as a child process."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import List

from support.wait import PATIENCE_SECONDS, eventually

REPOSITORY = Path(__file__).resolve().parents[3]
#: The tested binary: `POSTHASTE_BIN`, or the debug build.
BINARY = os.environ.get("POSTHASTE_BIN", str(REPOSITORY / "target" / "debug" / "posthaste"))


@dataclass(frozen=True)
class User:
    token: str
    current: str
    next: str


#: The published development credentials: every server in dev mode knows these four users.
USERS = [
    User(
        "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0=",
        "sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r",
        "sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs",
    ),
    User(
        "eyJVc2VySUQiOiJ0ZXN0VXNlcjEiLCJQYXNzd29yZCI6InRlc3RQYXNzd29yZCJ9",
        "sig_7GVPjvuwsfqF65iC8fSrs1dfYruM",
        "sig_5NoELc3EFnZn4DVS5bDs2Nk4b7Ua",
    ),
    User(
        "eyJVc2VySUQiOiJ0ZXN0VXNlcjIiLCJQYXNzd29yZCI6InRlc3RQYXNzd29yZCJ9",
        "sig_6jWGaWRxHsw4vMSPJprXadyvrybF",
        "sig_7qHbvhmahe5GwfePDiS5Lg3pi6Qx",
    ),
    User(
        "eyJVc2VySUQiOiJ0ZXN0VXNlcjMiLCJQYXNzd29yZCI6InRlc3RQYXNzd29yZCJ9",
        "sig_5T8FcSsynBjn9mMLBsXhpacRovJf",
        "sig_7GFR4YaDshFcqsxWRZpRB161jguD",
    ),
]


class Server:
    """`posthaste dev` on its own data directory and a free port."""

    def __init__(self) -> None:
        self._data_dir = tempfile.mkdtemp(prefix="posthaste-e2e-")
        self.start()

    def restart(self) -> None:
        """kill -9, and a new start on the same data directory and port: clients continue unchanged."""
        self.kill()
        self.start(self.url.removeprefix("http://"))

    def start(self, listen: str = "127.0.0.1:0") -> None:
        """Starts it, also after `kill`; the port is then another one."""
        self._lines: List[str] = []
        self._process = subprocess.Popen(
            [BINARY, "dev", "--listen", listen, "--data-dir", self._data_dir],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
        )
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        self.url = eventually("the server's address", self._address)

    def kill(self) -> None:
        """kill -9: no chance to clean up."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_SECONDS)

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._data_dir, ignore_errors=True)

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._lines.append(line)

    def _address(self) -> str:
        for line in list(self._lines):
            address = re.search(r"is running at (http://\S+)", line)
            if address:
                return address.group(1)
        assert self._process.poll() is None, f"the server ended:\n{''.join(self._lines)}"
        return ""


def environment() -> "dict[str, str]":
    """Settings of the machine must not leak into the tested programs."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("POSTHASTE_", "QSTASH_"))}
