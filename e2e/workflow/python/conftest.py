"""Fixtures: one server, one program and one third party per run, and a story per test.

Signatures are verified everywhere: both signing keys are set, as in a user's environment.
"""

import json
import os
import urllib.parse
import urllib.request
from collections import Counter
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional

import pytest
from qstash import QStash

from program import Program
from support.receiver import Receiver
from support.server import USERS, Server
from support.wait import PATIENCE_SECONDS, eventually


@dataclass
class Story:
    """The environment of a test."""

    server: Server
    program: Program
    third: Receiver
    client: QStash

    def trigger(self, path: str, body: Any = None, headers: Optional[Dict[str, str]] = None) -> str:
        """Publishes to a workflow, as a program without a workflow client does; returns the id of the run."""
        known = len(self.program.raw_calls(path))
        url = self.program.url(path)
        self.client.message.publish_json(url=url, body=body, headers=headers or {}, retries=0)
        arrived = eventually(f"a message at {path}", lambda: self.program.raw_calls(path)[known:])
        assert arrived[0].status == 200, arrived[0].answer
        return str(json.loads(arrived[0].answer)["workflowRunId"])

    def log(self, run: str, **filters: Any) -> Optional[Dict[str, Any]]:
        query = urllib.parse.urlencode({"groupBy": "workflowRunId", "workflowRunId": run, **filters})
        request = urllib.request.Request(
            f"{self.server.url}/v2/workflows/events?{query}", headers={"Authorization": f"Bearer {USERS[0].token}"}
        )
        with urllib.request.urlopen(request) as answer:
            runs = json.load(answer)["runs"]
        return runs[0] if runs else None

    def reaches(self, run: str, state: str, patience: float = PATIENCE_SECONDS) -> Dict[str, Any]:
        """Waits until a run is in a state, and returns its log."""

        def probe() -> Optional[Dict[str, Any]]:
            # Without bodies: some are megabytes.
            trimmed = self.log(run, trimBody=100)
            return self.log(run) if trimmed and trimmed["workflowState"] == state else None

        return eventually(f"{run} {state}", probe, patience)

    def outputs(self, run: str, patience: float = PATIENCE_SECONDS) -> Dict[str, Any]:
        """The results of the steps of a run that has succeeded, by name."""
        log = self.reaches(run, "RUN_SUCCESS", patience)
        steps = [step for group in log["steps"] for step in group["steps"]][1:]
        return {step["stepName"]: step.get("out") for step in steps}

    def exactly(self, run: str, *expected: str) -> None:
        """Asserts the calls of a run, in order, and again at the end of all tests."""
        self.program.idle()
        assert [call.described() for call in self.program.calls_of(run)] == list(expected)
        _counts[run] = list(expected)


_counts: Dict[str, List[str]] = {}


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    running = Server()
    os.environ["QSTASH_URL"] = running.url
    os.environ["QSTASH_TOKEN"] = USERS[0].token
    os.environ["QSTASH_CURRENT_SIGNING_KEY"] = USERS[0].current
    os.environ["QSTASH_NEXT_SIGNING_KEY"] = USERS[0].next
    yield running
    running.stop()


@pytest.fixture(scope="session")
def third() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def program(server: Server) -> Iterator[Program]:
    running = Program()
    yield running
    running.idle()
    late = {
        run: Counter(call.described() for call in running.calls_of(run))
        for run, expected in _counts.items()
        if [call.described() for call in running.calls_of(run)] != expected
    }
    running.stop()
    assert not late, f"calls after the end: {late}"


@pytest.fixture
def story(server: Server, program: Program, third: Receiver) -> Story:
    client = QStash(USERS[0].token, base_url=server.url, retry=False)
    return Story(server, program, third, client)
