"""What the server has acknowledged survives `kill -9`."""

import pytest
from qstash.log import LogState
from support.clients import sync_client
from support.receiver import Receiver
from support.server import USERS, Server
from support.wait import eventually


@pytest.fixture
def own_server():
    server = Server()
    yield server
    server.stop()


def test_acknowledged_messages_survive_kill_9(own_server: Server, receiver: Receiver):
    path = "/restart"
    client = sync_client(own_server.url, USERS[0].token)
    items = [{"url": receiver.url(path), "body": str(n), "delay": "1s" if n % 2 else "0s"} for n in range(50)]
    published = {answer.message_id for answer in client.message.batch(items)}
    own_server.kill()
    own_server.start()
    client = sync_client(own_server.url, USERS[0].token)
    receiver.arrivals(path, 50)

    def delivered():
        logs = client.log.list(filter={"state": LogState.DELIVERED, "url": receiver.url(path)}).logs
        return {log.message_id for log in logs} == published

    eventually("50 messages DELIVERED", delivered)
    arrived = {arrival.headers["upstash-message-id"] for arrival in receiver.at(path)}
    assert arrived == published
