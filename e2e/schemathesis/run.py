#!/usr/bin/env python3
"""Fuzzes a development server by its own /openapi.json: no 5xx, and every answer as the document says.

    e2e/schemathesis/run.py [BINARY] [--seconds N] [--seed N] [SCHEMATHESIS OPTIONS…]

BINARY is target/debug/posthaste unless given. The server gets a data directory and a port of its own; nothing
that is generated leaves the machine (see hooks.py, and the check of the server's log at the end).
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: The first published development user.
TOKEN = "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0="
#: Where messages may go: a closed port.
NOWHERE = ["http://127.0.0.1:9/", "http://127.0.0.1:9/a/b?c=d"]
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance," \
         "response_schema_conformance"
START_SECONDS = 60
#: Fields and headers that hold a URL.
URLS = {"url", "destination", "Upstash-Callback", "Upstash-Failure-Callback"}
#: Valid values for parameters whose form the document cannot describe.
MEANINGFUL = {
    "Upstash-Not-Before": [0, 1780315200],
    "Upstash-Deduplication-Id": ["a", "b:c"],
    "Upstash-Flow-Control-Key": ["key", "a/b c"],
    "Upstash-Cron": ["* * * * *", "CRON_TZ=Europe/Paris 0 9 * * 1-5", "@every 1h"],
    "Upstash-Retry-Delay": ["1000", "pow(2, retried) * 1000", "max(1, retried)"],
    "Upstash-Flow-Control-Value": ["parallelism=1", "rate=10, period=1m", "parallelism=2, rate=1"],
    "Upstash-Redact-Fields": ["body", "body, header[Authorization]"],
}


def main():
    arguments, others = read_arguments()
    if not arguments.binary.exists():
        sys.exit(f"{arguments.binary} does not exist: build it with `cargo build`, or name another one")
    with tempfile.TemporaryDirectory(prefix="posthaste-fuzz-") as directory:
        directory = Path(directory)
        server = Server(arguments.binary.resolve(), directory)
        try:
            document = directory / "openapi.json"
            document.write_text(json.dumps(prepared(server.document(), server.seed())), encoding="utf-8")
            code = fuzz(document, server.url, arguments, others)
            problems = server.problems()
        finally:
            server.stop()
    for problem in problems:
        print(f"FAILED {problem}")
    return 1 if code or problems else 0


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="?", type=Path, default=ROOT / "target/debug/posthaste")
    parser.add_argument("--seconds", type=int, default=120, help="how long the fuzzing may take")
    parser.add_argument("--seed", type=int, default=1, help="what the generated requests depend on")
    return parser.parse_known_args()


def fuzz(document, url, arguments, others):
    command = [
        Path(sys.executable).with_name("schemathesis"), "run", document, "--url", url,
        "--header", f"Authorization: Bearer {TOKEN}", "--checks", CHECKS, "--phases", "examples,coverage,fuzzing",
        "--max-examples", "40", "--seed", str(arguments.seed), "--max-time", str(arguments.seconds),
        "--request-timeout", "30", "--continue-on-failure", "--warnings", "off", *others,
    ]
    environment = os.environ | {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=document.parent, env=environment).returncode


def prepared(document, ids):
    """The document for the fuzzer: URLs that lead nowhere, valid values, and no unnamed fields."""
    for schema in document["components"]["schemas"].values():
        tighten(schema)
    # A stream does not end, so it has no complete response.
    document["paths"] = {path: operations for path, operations in document["paths"].items() if not is_stream(operations)}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                known = ids.get(path.split("/")[2]) if parameter["in"] == "path" else None
                parameter["schema"] = meaningful(parameter["name"], parameter["schema"], known)
            for response in operation["responses"].values():
                for content in response.get("content", {}).values():
                    tighten(content["schema"])
    return document


def is_stream(operations):
    answers = (answer for operation in operations.values() for answer in operation["responses"].values())
    return any("text/event-stream" in answer.get("content", {}) for answer in answers)


def meaningful(name, schema, known=None):
    if name in URLS:
        return {"enum": NOWHERE + ["group"] if name == "destination" else NOWHERE}
    if name in MEANINGFUL:
        return {"enum": MEANINGFUL[name]}
    return {"anyOf": [{"enum": known}, schema]} if known else schema


def tighten(schema):
    """Fields that the document does not name are an error in a response; a request may have more."""
    if not isinstance(schema, dict):
        return
    fields = schema.get("properties")
    if fields and "additionalProperties" not in schema:
        schema["additionalProperties"] = False
        for name, field in fields.items():
            fields[name] = {"anyOf": [{"enum": NOWHERE}, field]} if name in URLS else field
    for part in schema.values():
        if isinstance(part, dict):
            tighten(part)
        elif isinstance(part, list):
            for item in part:
                tighten(item)
    for field in (fields or {}).values():
        tighten(field)


class Server:
    """`posthaste dev` as a child process, with its output."""

    def __init__(self, binary, directory):
        names = ("POSTHASTE_", "QSTASH_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        self.lines = []
        self.url = None
        self._settled = threading.Event()
        self._process = subprocess.Popen(
            [binary, "dev", "--quiet", "--log", "info", "--listen", "127.0.0.1:0", "--data-dir", directory / "data"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=directory,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._settled.wait(START_SECONDS)
        if self.url is None:
            self.stop()
            sys.exit(f"the server did not start:\n{''.join(self.lines)}")

    def document(self):
        with urllib.request.urlopen(f"{self.url}/openapi.json", timeout=START_SECONDS) as answer:
            return json.load(answer)

    def seed(self):
        """Creates one resource of each kind, so that lookups succeed; returns ids by resource."""
        publish = f"/v2/publish/{NOWHERE[0]}"
        failed = self.ask("POST", publish, {"Upstash-Retries": "0", "Upstash-Label": "a,b"}, b"\xff")["messageId"]
        waits = {"Upstash-Delay": "1h", "Upstash-Forward-X": "y", "Upstash-Callback": NOWHERE[0], "Upstash-Timeout": "9s"}
        waiting = [self.ask("POST", publish, waits | {"Upstash-Redact-Fields": fields})["messageId"]
                   for fields in ("body", "header", "header[X]")]
        limits = {"Upstash-Flow-Control-Key": "key", "Upstash-Flow-Control-Value": "rate=1, period=1h"}
        self.ask("POST", f"/v2/enqueue/queue/{NOWHERE[0]}", limits)
        self.ask("POST", "/v2/topics/group/endpoints", {}, json.dumps({"endpoints": [{"url": NOWHERE[0]}]}).encode())
        schedule = {"Upstash-Cron": "0 0 1 1 *", "Upstash-Schedule-Id": "schedule", "Upstash-Delay": "9s"}
        self.ask("POST", f"/v2/schedules/{NOWHERE[0]}", schedule)
        action = self.ask("DELETE", "/v2/messages?async=true&label=none")["actionId"]
        dead = self.wait_for(lambda: self.ask("GET", f"/v2/dlq?messageId={failed}")["messages"])
        return {
            "messages": [failed, *waiting], "dlq": [dead[0]["dlqId"]], "bulkActions": [action], "queues": ["queue"],
            "topics": ["group"], "schedules": ["schedule"], "flowControl": ["key"],
        }

    def ask(self, method, path, headers=None, body=None):
        headers = {"Authorization": f"Bearer {TOKEN}", **(headers or {})}
        request = urllib.request.Request(self.url + path, data=body, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            return json.load(answer)

    def wait_for(self, look):
        deadline = time.monotonic() + START_SECONDS
        while not (found := look()):
            if time.monotonic() > deadline:
                sys.exit("what was published did not fail in time")
        return found

    def problems(self):
        """Forbidden lines of the log: panics, and attempts to reach another machine."""
        problems = []
        if self._process.poll() is not None:
            problems.append(f"the server ended with {self._process.returncode}: {''.join(self.lines[-20:])}")
        for line in self.lines:
            origin = re.search(r'origin="([^"]*)"', line)
            if "panicked" in line or (origin and not re.match(r"https?://127\.0\.0\.1:9$", origin[1])):
                problems.append(f"in the server's log: {line.strip()}")
        if not any("attempt failed" in line for line in self.lines):
            problems.append("no message was ever attempted: the fuzzing reached nothing")
        return problems[:20]

    def stop(self):
        self._process.terminate()
        try:
            self._process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(START_SECONDS)

    def _read(self):
        for line in self._process.stdout:
            self.lines.append(line)
            found = re.search(r"is running at (http://\S+)", line)
            if found:
                self.url = found[1]
                self._settled.set()
        self._settled.set()


if __name__ == "__main__":
    sys.exit(main())
