"""Publishing, and the requests that the receiver gets."""

import time

import pytest
from qstash.errors import QStashError
from qstash.log import LogState


def test_publish_json_arrives_with_content_type_and_our_headers(story):
    path = story.path()
    answer = story.client.message.publish_json(
        url=story.receiver.url(path), body={"hello": "wörld"}, headers={"X-Mine": "1"}
    )
    assert answer.message_id.startswith("msg_")
    assert answer.deduplicated is False
    [arrival] = story.receiver.arrivals(path)
    assert arrival.method == "POST"
    assert arrival.body == '{"hello": "w\\u00f6rld"}'.encode()
    assert arrival.headers["content-type"] == "application/json"
    assert arrival.headers["x-mine"] == "1"
    assert arrival.headers["user-agent"] == "Upstash-QStash"
    assert arrival.headers["upstash-message-id"] == answer.message_id
    assert arrival.headers["upstash-retried"] == "0"
    assert "authorization" not in arrival.headers


def test_text_and_bytes_arrive_unchanged(story):
    for body in ["plain", "grüße ☃\r\n", bytes(range(256))]:
        path = story.path()
        message_id = story.client.message.publish(url=story.receiver.url(path), body=body).message_id
        [arrival] = story.receiver.arrivals(path)
        assert arrival.body == (body.encode() if isinstance(body, str) else body)
        message = story.client.message.get(message_id)
        assert (message.body is None) == isinstance(body, bytes)
        assert (message.body_base64 is None) == isinstance(body, str)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_methods_with_a_body(story, method):
    path = story.path()
    story.client.message.publish(url=story.receiver.url(path), method=method, body="with body")
    [arrival] = story.receiver.arrivals(path)
    assert (arrival.method, arrival.body) == (method, b"with body")


def test_the_query_of_the_destination_is_kept(story):
    path = story.path()
    target = f"{path}?sleep=30000&x=a%20b&x=2"
    story.client.message.publish(url=story.receiver.url(target), body="x")
    assert story.receiver.arrivals(path)[0].target == target


def test_the_content_type_argument(story):
    path = story.path()
    message_id = story.client.message.publish(
        url=story.receiver.url(path), body="<a/>", content_type="application/xml"
    ).message_id
    assert story.receiver.arrivals(path)[0].headers["content-type"] == "application/xml"
    assert story.client.message.get(message_id).headers == {"Content-Type": ["application/xml"]}


def test_delay_and_not_before(story):
    path = story.path()
    published = time.time()
    message_id = story.client.message.publish(url=story.receiver.url(path), body="x", delay=1).message_id
    message = story.client.message.get(message_id)
    assert message.not_before - message.created_at == 1_000
    story.receiver.arrivals(path)
    assert time.time() - published >= 1

    for options, milliseconds in [({"delay": "1h30m3s"}, 5_403_000), ({"delay": 90}, 90_000)]:
        message_id = story.client.message.publish(url=story.receiver.url(path), **options).message_id
        message = story.client.message.get(message_id)
        assert message.not_before - message.created_at == milliseconds
        story.client.message.cancel(message_id)

    due = int(time.time()) + 3600
    message_id = story.client.message.publish(url=story.receiver.url(path), not_before=due, delay="1d").message_id
    assert story.client.message.get(message_id).not_before == due * 1_000
    story.client.message.cancel(message_id)


def test_get_shows_the_whole_message(story):
    url = story.receiver.url(story.path())
    message_id = story.client.message.publish_json(
        url=url,
        body={"a": 1},
        method="PUT",
        retries=7,
        retry_delay="1000 * retried",
        timeout="30s",
        delay="10s",
        label="whole",
        headers={"X-A": "b"},
    ).message_id
    message = story.client.message.get(message_id)
    assert message.message_id == message_id
    assert message.url == url
    assert message.method == "PUT"
    assert message.body == '{"a": 1}'
    assert message.max_retries == 7
    assert message.retry_delay_expression == "1000 * retried"
    assert message.label == "whole"
    assert message.caller_ip == "127.0.0.1"
    assert message.headers == {"Content-Type": ["application/json"], "X-A": ["b"]}
    assert message.flow_control is None
    story.client.message.cancel(message_id)


def test_booleans_in_pythons_spelling(story):
    """The SDK sends `True` and `False`."""
    path = story.path()
    options = {"url": story.receiver.url(path), "body": story.name("same")}
    first = story.client.message.publish(**options, content_based_deduplication=True)
    again = story.client.message.publish(**options, content_based_deduplication=True)
    other = story.client.message.publish(**options, content_based_deduplication=False)
    assert (again.message_id, again.deduplicated) == (first.message_id, True)
    assert other.deduplicated is False and other.message_id != first.message_id
    assert len(story.receiver.arrivals(path, 2)) == 2


def test_deduplication_id(story):
    path = story.path()
    options = {"url": story.receiver.url(path), "deduplication_id": story.name("order")}
    first = story.client.message.publish(**options, body="one")
    again = story.client.message.publish(**options, body="two")
    assert (again.message_id, again.deduplicated) == (first.message_id, True)
    story.logs_until(first.message_id, LogState.DELIVERED)
    assert [arrival.body for arrival in story.receiver.at(path)] == [b"one"]


def test_redaction(story):
    path = story.path()
    message_id = story.client.message.publish(
        url=story.receiver.url(path),
        body="secret body",
        headers={"X-Secret": "secret value"},
        redact={"body": True, "header": ["X-Secret"]},
    ).message_id
    [arrival] = story.receiver.arrivals(path)
    assert (arrival.body, arrival.headers["x-secret"]) == (b"secret body", "secret value")
    message = story.client.message.get(message_id)
    assert message.body.startswith("REDACTED:")
    assert message.headers["X-Secret"][0].startswith("REDACTED:")
    for log in story.logs_until(message_id, LogState.DELIVERED):
        assert "secret" not in str(log.headers)


def test_batches_keep_their_order(story):
    path = story.path()
    answers = story.client.message.batch_json(
        [{"url": story.receiver.url(f"{path}/{n}"), "body": {"n": n}, "headers": {"N": str(n)}} for n in range(5)]
    )
    for n, answer in enumerate(answers):
        [arrival] = story.receiver.arrivals(f"{path}/{n}")
        assert arrival.headers["upstash-message-id"] == answer.message_id
        assert arrival.headers["n"] == str(n)
        assert arrival.headers["content-type"] == "application/json"
    # Without a body or headers the SDK sends nulls and empty objects.
    [plain] = story.client.message.batch([{"url": story.receiver.url(f"{path}/plain")}])
    [arrival] = story.receiver.arrivals(f"{path}/plain")
    assert arrival.body == b"" and arrival.headers["upstash-message-id"] == plain.message_id


def test_one_wrong_item_rejects_the_batch(story):
    path = story.path()
    good = {"url": story.receiver.url(path), "body": "x"}
    with pytest.raises(QStashError, match="status: 400"):
        story.client.message.batch([good, {**good, "delay": "soon"}])
    last = story.client.message.publish(url=good["url"], body="last").message_id
    story.logs_until(last, LogState.DELIVERED)
    assert [arrival.body for arrival in story.receiver.at(path)] == [b"last"]
