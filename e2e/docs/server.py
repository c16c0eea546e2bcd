"""The real binary as a child process."""

import json
import os
import re
import subprocess
import time
import urllib.request

#: Longest wait for a condition.
PATIENCE_SECONDS = 60
#: Interval of polling.
POLL_SECONDS = 0.02
ADDRESS = re.compile(r'is running at http://(\S+)\n|"address":"([^"]+)"')

#: The published development user that the SDKs know.
DEV_USER = {
    "QSTASH_TOKEN": "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0=",
    "QSTASH_CURRENT_SIGNING_KEY": "sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r",
    "QSTASH_NEXT_SIGNING_KEY": "sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs",
}


def clean_environment():
    """The environment without anything that would configure a server or an SDK."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("POSTHASTE_", "QSTASH_"))}


class Server:
    """`posthaste dev` or `serve`, on a free port."""

    def __init__(self, binary, directory, *arguments, mode="dev"):
        command = [binary, mode, "--listen", "127.0.0.1:0", "--log-format", "json", *arguments]
        self._log = directory / f"posthaste-{mode}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, cwd=directory, env=clean_environment(), stdout=log, stderr=subprocess.STDOUT
            )
        self.url = f"http://{self._address()}"

    def _address(self):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            # `dev` prints it for people, `serve` logs it.
            found = ADDRESS.search(self._log.read_text())
            if found:
                return found[1] or found[2]
            try:
                self._process.wait(POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
        raise RuntimeError(f"the server did not start:\n{self._log.read_text()}")

    def get(self, path, token=None):
        """The text of an answer; anything but 200 raises."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return answer.read().decode()

    def publish(self, destination, headers):
        """Publishes as the development user; returns the message id."""
        headers = {"Authorization": f"Bearer {DEV_USER['QSTASH_TOKEN']}", "Content-Type": "text/plain", **headers}
        request = urllib.request.Request(f"{self.url}/v2/publish/{destination}", b"hello", headers, method="POST")
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return json.load(answer)["messageId"]

    def stop(self):
        """Asks it to stop; returns its exit code."""
        self._process.terminate()
        try:
            return self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
