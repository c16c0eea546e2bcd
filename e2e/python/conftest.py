"""Fixtures: one server and one receiver per run, a story per test and client, and schedules that fire.

Schedules fire at full minutes only. So they are made before the first test, and the tests that look at what
they did (marked `minute`) come last: the others run while the minute passes.
"""

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List

import pytest
from qstash.dlq import DlqMessage
from qstash.log import Log, LogState

from support.clients import AsyncioClient, sync_client
from support.firing import Firing, away_from_the_minute
from support.receiver import Receiver
from support.server import USERS, Server
from support.wait import eventually

_numbers = itertools.count(1)


@dataclass
class Story:
    """The environment of a test."""

    server: Server
    receiver: Receiver
    client: Any
    clients: List[Any]

    def path(self) -> str:
        """A unique path."""
        return f"/{self.name('path')}"

    def name(self, prefix: str) -> str:
        return f"{prefix}-{next(_numbers)}"

    def logs_until(self, message_id: str, state: LogState, client: Any = None) -> List[Log]:
        """Waits until a message has reached a state; returns its log lines, oldest first."""

        def probe() -> List[Log]:
            logs = (client or self.client).log.list(filter={"message_id": message_id}).logs
            return logs[::-1] if any(log.state == state for log in logs) else []

        return eventually(f"{message_id} {state}", probe)

    def dead_letter(self, message_id: str) -> DlqMessage:
        """Waits for the dead letter of a message."""
        found = eventually(
            f"{message_id} in the DLQ",
            lambda: self.client.dlq.list(filter={"message_id": message_id}).messages,
        )
        return found[0]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    running = asyncio.new_event_loop()
    yield running
    running.close()


KINDS = ["sync", "asyncio"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Selects one of the SDK's two clients."""
    return str(request.param)


@pytest.fixture(scope="session")
def clients(server: Server, loop: asyncio.AbstractEventLoop) -> Dict[str, List[Any]]:
    """A client of each kind for each user, because creating them is slow."""
    return {
        "sync": [sync_client(server.url, user.token) for user in USERS],
        "asyncio": [AsyncioClient(server.url, user.token, loop) for user in USERS],
    }


@pytest.fixture
def story(kind: str, server: Server, receiver: Receiver, clients: Dict[str, List[Any]]) -> Story:
    return Story(server, receiver, clients[kind][0], clients[kind])


@pytest.fixture(scope="session")
def firings(receiver: Receiver, clients: Dict[str, List[Any]]) -> Dict[str, Firing]:
    """The schedules of each client for the next full minute."""
    away_from_the_minute()
    return {kind: Firing(clients[kind][0], receiver, kind) for kind in KINDS}


@pytest.fixture(scope="session", autouse=True)
def schedule_early(request: pytest.FixtureRequest) -> None:
    if any(item.get_closest_marker("minute") for item in request.session.items):
        request.getfixturevalue("firings")


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("minute") is not None)
