"""Fixtures: one server and one receiver per run, and a story per test and client."""

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any, Iterator, List

import pytest
from qstash.dlq import DlqMessage
from qstash.log import Log, LogState

from support.clients import AsyncioClient, sync_client
from support.receiver import Receiver
from support.server import USERS, Server
from support.wait import eventually

_numbers = itertools.count(1)


@dataclass
class Story:
    """What a test works with."""

    server: Server
    receiver: Receiver
    client: Any
    clients: List[Any]

    def path(self) -> str:
        """A path that no other test uses."""
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
        """Waits for the entry in the DLQ that a message has become."""
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


@pytest.fixture(params=["sync", "asyncio"])
def story(
    request: pytest.FixtureRequest, server: Server, receiver: Receiver, loop: asyncio.AbstractEventLoop
) -> Story:
    if request.param == "sync":
        clients: List[Any] = [sync_client(server.url, user.token) for user in USERS]
    else:
        clients = [AsyncioClient(server.url, user.token, loop) for user in USERS]
    return Story(server, receiver, clients[0], clients)
