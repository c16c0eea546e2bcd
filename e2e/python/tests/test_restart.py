"""Acknowledged data survives `kill -9`."""

import threading
import time
from dataclasses import replace

import pytest
from qstash.log import LogState
from support.clients import sync_client
from support.receiver import Answer, Receiver, keeps_rate
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


def test_queues_keep_their_order_and_their_pause(own_server: Server, receiver: Receiver):
    client = sync_client(own_server.url, USERS[0].token)
    release = threading.Event()
    receiver.script("/retried", 500, Answer(200, after=release), 200)
    ids = [
        client.message.enqueue(
            queue="retried", url=receiver.url("/retried"), body=body, retries=3, retry_delay="4000"
        ).message_id
        for body in ["1", "2", "3"]
    ]
    client.queue.upsert("paused", parallelism=3, paused=True)
    client.message.enqueue(queue="paused", url=receiver.url("/paused-queue"))
    paused = client.queue.get("paused")
    waits = {"message_id": ids[0], "state": LogState.RETRY}
    eventually("the wait for the retry", lambda: client.log.list(filter=waits).logs)
    own_server.restart()
    assert client.queue.get("paused") == paused
    assert client.queue.get("retried").lag == 3
    release.set()
    receiver.arrivals("/retried", 4)
    assert receiver.bodies("/retried") == ["1", "1", "2", "3"]
    assert receiver.at("/paused-queue") == []
    client.queue.resume("paused")
    receiver.arrivals("/paused-queue")


def test_flow_control_schedules_groups_and_callbacks_are_kept(own_server: Server, receiver: Receiver):
    client = sync_client(own_server.url, USERS[0].token)
    client.flow_control.pin("pinned", {"parallelism": 3, "rate": 4, "period": 60})
    client.flow_control.pause("paused")
    client.message.publish(url=receiver.url("/paused-key"), flow_control={"key": "paused", "parallelism": 1})
    client.schedule.create(destination="https://example.com", cron="1 1 31 1 1", schedule_id="kept", body="x")
    client.schedule.pause("kept")
    client.url_group.upsert_endpoints("kept", [{"url": receiver.url("/kept-group"), "name": "one"}])
    release = threading.Event()
    receiver.script("/kept-callback", Answer(200, after=release), 200)
    client.message.publish(url=receiver.url("/kept-source"), callback=receiver.url("/kept-callback"))
    [called] = receiver.arrivals("/kept-callback")

    def kept():
        # A period without starts always begins now.
        keys = [replace(client.flow_control.get(key), rate_period_start=0) for key in ["pinned", "paused"]]
        return keys, client.schedule.list(), client.url_group.list()

    before = kept()
    own_server.restart()
    release.set()
    assert kept() == before
    again = receiver.arrivals("/kept-callback", 2)[1]
    assert (again.headers["upstash-message-id"], again.body) == (called.headers["upstash-message-id"], called.body)
    assert receiver.at("/paused-key") == []
    client.flow_control.resume("paused")
    receiver.arrivals("/paused-key")
    client.message.publish(url_group="kept", body="x")
    receiver.arrivals("/kept-group")


def test_a_rate_holds_across_a_kill(own_server: Server, receiver: Receiver):
    client = sync_client(own_server.url, USERS[0].token)
    limits = {"key": "rated", "rate": 1, "period": 2}
    since = time.time()
    for _ in range(3):
        client.message.publish(url=receiver.url("/rated"), flow_control=limits)
    [first] = receiver.arrivals("/rated")
    delivered = {"message_id": first.headers["upstash-message-id"], "state": LogState.DELIVERED}
    eventually("the first DELIVERED", lambda: client.log.list(filter=delivered).logs)
    own_server.restart()
    keeps_rate(receiver.arrivals("/rated", 3), 1, 2, since)
