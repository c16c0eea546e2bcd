"""Callbacks and failure callbacks: when they arrive, what they contain, and that they are messages themselves."""

import base64
import json

import pytest
from qstash import Receiver
from qstash.errors import QStashError
from qstash.log import LogState
from support.receiver import Answer
from support.server import USERS

S = LogState


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def payload_of(story, arrival):
    """The content of a callback. Its signature is verified first, as receivers do."""
    Receiver(USERS[0].current, USERS[0].next).verify(
        signature=arrival.headers["upstash-signature"],
        body=arrival.body.decode(),
        url=story.receiver.url(arrival.target),
    )
    return json.loads(arrival.body)


def places(story):
    path = story.path()
    urls = [story.receiver.url(path + end) for end in ["", "-callback", "-failure"]]
    return path, {"url": urls[0], "callback": urls[1], "failure_callback": urls[2]}


def test_a_callback_contains_everything_about_a_delivery(story):
    path, urls = places(story)
    story.receiver.script(path, Answer(201, "grüße".encode(), {"X-Answer": "yes"}))
    message_id = story.client.message.publish_json(
        **urls, body={"n": 1}, method="PUT", headers={"X-Asked": "1"}, retries=2
    ).message_id
    [arrival] = story.receiver.arrivals(f"{path}-callback")
    assert (arrival.method, arrival.headers["content-type"]) == ("POST", "application/json")
    payload = payload_of(story, arrival)
    assert payload.pop("header")["X-Answer"] == ["yes"]
    assert payload.pop("createdAt") == payload.pop("notBefore")
    assert payload == {
        "status": 201,
        "body": encoded("grüße"),
        "retried": 0,
        "maxRetries": 2,
        "sourceMessageId": message_id,
        "url": urls["url"],
        "method": "PUT",
        "sourceHeader": {"Content-Type": ["application/json"], "X-Asked": ["1"]},
        "sourceBody": encoded('{"n": 1}'),
        "callerIP": "127.0.0.1",
    }
    own_id = arrival.headers["upstash-message-id"]
    assert own_id != message_id
    logs = story.logs_until(own_id, S.DELIVERED)
    assert [(log.state, log.url) for log in logs] == [(state, urls["callback"]) for state in [S.CREATED, S.ACTIVE, S.DELIVERED]]
    message = story.client.message.get(message_id)
    assert (message.callback, message.failure_callback) == (urls["callback"], urls["failure_callback"])
    assert story.receiver.at(f"{path}-failure") == []


def test_after_every_attempt_and_after_the_last_failure(story):
    path, urls = places(story)
    story.receiver.script(path, Answer(503, b"no"))
    message_id = story.client.message.publish(**urls, body="x", retries=1, retry_delay="30").message_id
    attempts = [payload_of(story, arrival) for arrival in story.receiver.arrivals(f"{path}-callback", 2)]
    assert sorted((attempt["retried"], attempt["status"]) for attempt in attempts) == [(0, 503), (1, 503)]
    [arrival] = story.receiver.arrivals(f"{path}-failure")
    failure = payload_of(story, arrival)
    letter = story.dead_letter(message_id)
    assert (failure["dlqId"], failure["sourceMessageId"]) == (letter.dlq_id, message_id)
    assert (failure["retried"], failure["maxRetries"], failure["body"]) == (1, 1, encoded("no"))
    assert (letter.callback, letter.failure_callback) == (urls["callback"], urls["failure_callback"])


@pytest.mark.parametrize("way", ["publish", "enqueue", "batch"])
def test_headers_of_callbacks(story, way):
    path, urls = places(story)
    story.receiver.script(path, 500)
    options = {
        **urls,
        "retries": 0,
        "callback_headers": {"Forward-X-Mine": "callback", "Method": "PUT", "Unknown-To-All": "ignored"},
        "failure_callback_headers": {"Upstash-Failure-Callback-Forward-X-Mine": "failure", "Retries": 4},
    }
    if way == "publish":
        message_id = story.client.message.publish(**options).message_id
    elif way == "enqueue":
        message_id = story.client.message.enqueue(queue=story.name("called"), **options).message_id
    else:
        message_id = story.client.message.batch([options])[0].message_id
    [called] = story.receiver.arrivals(f"{path}-callback")
    assert (called.method, called.headers["x-mine"]) == ("PUT", "callback")
    [failed] = story.receiver.arrivals(f"{path}-failure")
    assert (failed.method, failed.headers["x-mine"]) == ("POST", "failure")
    assert story.client.message.get(failed.headers["upstash-message-id"]).max_retries == 4
    letter = story.dead_letter(message_id)
    assert letter.callback_headers["X-Mine"] == ["callback"]
    assert letter.failure_callback_headers["X-Mine"] == ["failure"]
    log = story.client.log.list(filter={"message_id": message_id}).logs[0]
    assert log.callback_headers["X-Mine"] == ["callback"]
    assert log.failure_callback_headers["X-Mine"] == ["failure"]


def test_callbacks_to_invalid_destinations_are_rejected(story):
    for options in [{"callback": "example.com"}, {"failure_callback": "ftp://example.com"}]:
        with pytest.raises(QStashError, match="status: 400"):
            story.client.message.publish(url=story.receiver.url("/unused"), **options)
