"""Cancelling: one, many, all."""

import threading

import pytest
from qstash.errors import QStashError
from qstash.log import LogState
from support.receiver import Answer

S = LogState


def later(story, client=None):
    client = client or story.client
    return client.message.publish(url=story.receiver.url("/later"), delay="1h").message_id


def test_cancel_one(story):
    message_id = later(story)
    story.client.message.cancel(message_id)
    logs = story.logs_until(message_id, S.CANCELED)
    assert [log.state for log in logs] == [S.CREATED, S.CANCEL_REQUESTED, S.CANCELED]
    with pytest.raises(QStashError, match="status: 404"):
        story.client.message.cancel(message_id)


def test_cancel_many(story):
    ids = [later(story) for _ in range(3)]
    assert story.client.message.cancel_many(ids[:2] + ["msg_unknown"]) == 2
    assert story.client.message.cancel_many(ids) == 1


def test_an_empty_list_is_not_everything(story):
    message_id = later(story)
    with pytest.raises(QStashError, match="status: 400"):
        story.client.message.cancel_many([])
    story.client.message.cancel(message_id)


def test_cancel_all_of_one_user(story):
    mine, theirs = story.clients[1], story.clients[2]
    mine.message.cancel_all()
    for _ in range(3):
        later(story, mine)
    other = later(story, theirs)
    assert mine.message.cancel_all() == 3
    assert mine.message.cancel_all() == 0
    theirs.message.cancel(other)


def test_cancel_in_flight(story):
    path = story.path()
    release = threading.Event()
    story.receiver.script(path, Answer(500, after=release))
    message_id = story.client.message.publish(url=story.receiver.url(path), retries=5, retry_delay="10").message_id
    story.receiver.arrivals(path)
    story.client.message.cancel(message_id)
    release.set()
    story.logs_until(message_id, S.CANCELED)
    assert len(story.receiver.at(path)) == 1
