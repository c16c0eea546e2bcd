"""Failing receivers: retries, dead letters, errors of the API."""

import threading

import pytest
from qstash.errors import QStashError
from qstash.log import LogState
from support.clients import sync_client
from support.receiver import Answer
from support.wait import eventually

S = LogState


def bury(story, count, status=500, client=None):
    """Publishes messages that fail at once, each after the previous one is a dead letter; returns them, newest first."""
    client = client or story.client
    path, label = story.path(), story.name("dead")
    story.receiver.script(path, Answer(status, b"no", {"X-Why": "because"}))
    letters = []

    def probe():
        messages = client.dlq.list(filter={"label": label}).messages
        return messages if len(messages) > len(letters) else None

    for n in range(count):
        client.message.publish(url=story.receiver.url(path), body=f"body {n}", retries=0, label=label)
        letters = eventually(f"{n + 1} dead letters", probe)
    return letters


def test_retries_until_success(story):
    path = story.path()
    story.receiver.script(path, Answer(500, b"broken"), 503, 200)
    message_id = story.client.message.publish(
        url=story.receiver.url(path), body="again", retries=3, retry_delay="50"
    ).message_id
    arrivals = story.receiver.arrivals(path, 3)
    assert [arrival.headers["upstash-retried"] for arrival in arrivals] == ["0", "1", "2"]
    logs = story.logs_until(message_id, S.DELIVERED)
    assert [log.state for log in logs] == [
        S.CREATED, S.ACTIVE, S.ERROR, S.RETRY, S.ACTIVE, S.ERROR, S.RETRY, S.ACTIVE, S.DELIVERED,
    ]  # fmt: skip
    assert (logs[2].response_status, logs[2].response_body) == (500, "broken")
    assert logs[3].next_delivery_time - logs[2].time == 50
    assert all(log.retry_delay_expression == "50" and log.max_retries == 3 for log in logs)


def test_exhausted_messages_are_dead_letters(story):
    path = story.path()
    story.receiver.script(path, Answer(404, b"404 Not Found", {"X-Why": "gone"}))
    message_id = story.client.message.publish(
        url=story.receiver.url(path), body="lost", retries=1, retry_delay="10", label="lost"
    ).message_id
    letter = story.dead_letter(message_id)
    assert len(story.receiver.at(path)) == 2
    assert letter.response_status == 404
    assert letter.response_body == "404 Not Found"
    assert letter.response_headers["X-Why"] == ["gone"]
    assert (letter.body, letter.max_retries, letter.label) == ("lost", 1, "lost")
    assert letter.retry_delay_expression == "10"
    assert story.client.dlq.get(letter.dlq_id) == letter
    logs = story.logs_until(message_id, S.FAILED)
    assert logs[-1].state == S.FAILED


def test_non_retryable(story):
    path = story.path()
    story.receiver.script(path, Answer(489, b"never", {"Upstash-NonRetryable-Error": "true"}))
    message_id = story.client.message.publish(url=story.receiver.url(path), retries=5, retry_delay="10").message_id
    assert story.dead_letter(message_id).response_status == 489
    assert [log.state for log in story.logs_until(message_id, S.FAILED)] == [S.CREATED, S.ACTIVE, S.ERROR, S.FAILED]
    assert len(story.receiver.at(path)) == 1


def test_timeouts(story):
    path = story.path()
    release = threading.Event()
    story.receiver.script(path, Answer(200, after=release))
    message_id = story.client.message.publish(url=story.receiver.url(path), retries=0, timeout=1).message_id
    letter = story.dead_letter(message_id)
    release.set()
    assert letter.response_status == 0
    logs = story.logs_until(message_id, S.FAILED)
    assert next(log for log in logs if log.state == S.ERROR).error


def test_dlq_filters_and_pages(story):
    letters = bury(story, 3, status=418)
    label, url = letters[0].label, letters[0].url
    ids = [letter.dlq_id for letter in letters]

    def listed(**filter):
        return [letter.dlq_id for letter in story.client.dlq.list(filter=filter).messages]

    assert listed(label=label) == ids
    assert listed(url=url, response_status=418) == ids
    assert listed(url=url, response_status=500) == []
    assert listed(message_id=letters[1].message_id) == [ids[1]]
    assert listed(label=label, caller_ip="127.0.0.1", from_time=letters[-1].created_at) == ids
    assert listed(label=label, to_time=letters[-1].created_at - 60_000) == []
    assert listed(url_group="none") == [] and listed(queue="none") == [] and listed(schedule_id="none") == []

    first = story.client.dlq.list(count=2, filter={"label": label})
    rest = story.client.dlq.list(count=2, filter={"label": label}, cursor=first.cursor)
    assert [letter.dlq_id for letter in first.messages + rest.messages] == ids
    assert rest.cursor is None


def test_dlq_delete(story):
    letters = bury(story, 4)
    story.client.dlq.delete(letters[0].dlq_id)
    with pytest.raises(QStashError, match="status: 404"):
        story.client.dlq.delete(letters[0].dlq_id)
    with pytest.raises(QStashError, match="status: 404"):
        story.client.dlq.get(letters[0].dlq_id)
    assert story.client.dlq.delete_many([letter.dlq_id for letter in letters]) == 3
    assert story.client.dlq.delete_many([letter.dlq_id for letter in letters]) == 0


def test_users_are_separate(story):
    [letter] = bury(story, 1)
    other = story.clients[1]
    with pytest.raises(QStashError, match="status: 404"):
        other.dlq.get(letter.dlq_id)
    assert other.dlq.delete_many([letter.dlq_id]) == 0
    assert other.log.list(filter={"message_id": letter.message_id}).logs == []


def test_errors_of_the_api(story):
    url = story.receiver.url("/unused")
    for options, pattern in [
        ({"url": url, "delay": "soon"}, "status: 400.*Upstash-Delay: ..soon.. is not a duration; accepted are"),
        ({"url": url, "timeout": "1x"}, "status: 400.*imeout"),
        ({"url": url, "retry_delay": "bogus("}, "status: 400.*Upstash-Retry-Delay: .*unknown name"),
        ({"url": url, "retries": -1}, "status: 400.*etries"),
        ({"url": "example.com:80/x"}, "status: 400.*invalid scheme"),
        ({"url_group": "no-such-group"}, "status: 404.*topic no-such-group not found"),
    ]:
        with pytest.raises(QStashError, match=pattern):
            story.client.message.publish(**options)
    with pytest.raises(QStashError, match="status: 404"):
        story.client.message.get("msg_unknown")
    assert story.receiver.at("/unused") == []


def test_a_wrong_token(story):
    wrong = sync_client(story.server.url, "wrong")
    with pytest.raises(QStashError, match="status: 401.*unable to authenticate: invalid token"):
        wrong.message.publish(url=story.receiver.url("/unused"))
