"""Queues: order, parallelism, pause, and waiting messages."""

import threading
import time

import pytest
from qstash.errors import QStashError
from qstash.log import LogState
from support.receiver import Answer
from support.wait import eventually

S = LogState


def enqueue(story, queue, path, bodies, **options):
    url = story.receiver.url(path)
    return [story.client.message.enqueue(queue=queue, url=url, body=body, **options).message_id for body in bodies]


def test_a_queue_is_created_changed_listed_and_deleted(story):
    name = story.name("queue")
    before = int(time.time() * 1000)
    story.client.queue.upsert(name, parallelism=1)
    made = story.client.queue.get(name)
    assert (made.name, made.parallelism, made.paused, made.lag) == (name, 1, False, 0)
    assert before <= made.created_at == made.updated_at
    story.client.queue.upsert(name, parallelism=2, paused=True)
    changed = story.client.queue.get(name)
    assert (changed.parallelism, changed.paused, changed.created_at) == (2, True, made.created_at)
    assert changed.updated_at >= made.updated_at
    assert [queue for queue in story.client.queue.list() if queue.name == name] == [changed]
    story.client.queue.delete(name)
    assert name not in [queue.name for queue in story.client.queue.list()]
    with pytest.raises(QStashError, match="status: 404"):
        story.client.queue.get(name)


def test_the_next_message_waits_for_the_retries_of_the_one_before_it(story):
    queue, path = story.name("fifo"), story.path()
    story.receiver.script(path, 500, 503, 200)
    ids = enqueue(story, queue, path, ["1", "2", "3"], retries=3, retry_delay="50")
    story.receiver.arrivals(path, 5)
    assert story.receiver.bodies(path) == ["1", "1", "1", "2", "3"]
    logs = [story.logs_until(message_id, S.DELIVERED) for message_id in ids]
    for earlier, later in zip(logs, logs[1:]):
        started = next(log for log in later if log.state == S.ACTIVE)
        assert started.time >= earlier[-1].time
    assert all(log.queue == queue for story_of_one in logs for log in story_of_one)
    assert {log.message_id for log in story.client.log.list(filter={"queue": queue}).logs} == set(ids)
    eventually("an empty queue", lambda: story.client.queue.get(queue).lag == 0)


def test_enqueue_json_with_every_setting(story):
    queue, path = story.name("whole"), story.path()
    story.client.queue.upsert(queue, paused=True)
    message_id = story.client.message.enqueue_json(
        queue=queue,
        url=story.receiver.url(path),
        body={"n": 1},
        method="PUT",
        headers={"X-A": "b"},
        retries=7,
        retry_delay="1000 * retried",
        callback=story.receiver.url(f"{path}-callback"),
        failure_callback=story.receiver.url(f"{path}-failure"),
        callback_headers={"Forward-X-Back": "1"},
        timeout="30s",
        label="queued",
        deduplication_id=story.name("order"),
    ).message_id
    message = story.client.message.get(message_id)
    assert (message.queue, message.method, message.max_retries, message.label) == (queue, "PUT", 7, "queued")
    assert message.retry_delay_expression == "1000 * retried"
    assert message.headers == {"Content-Type": ["application/json"], "X-A": ["b"]}
    assert message.callback == story.receiver.url(f"{path}-callback")
    assert message.failure_callback == story.receiver.url(f"{path}-failure")
    assert message.callback_headers == {"X-Back": ["1"]}
    story.client.queue.resume(queue)
    assert story.receiver.arrivals(path)[0].body == b'{"n": 1}'
    assert story.receiver.arrivals(f"{path}-callback")[0].headers["x-back"] == "1"


def test_parallelism_and_lag(story):
    queue, path = story.name("wide"), story.path()
    story.client.queue.upsert(queue, parallelism=2)
    release = threading.Event()
    story.receiver.script(path, Answer(200, after=release))
    enqueue(story, queue, path, ["1", "2", "3"])
    story.receiver.arrivals(path, 2)
    assert story.client.queue.get(queue).lag == 3
    assert sorted(story.receiver.bodies(path)) == ["1", "2"]
    release.set()
    story.receiver.arrivals(path, 3)
    eventually("an empty queue", lambda: story.client.queue.get(queue).lag == 0)


def test_pause_and_resume(story):
    queue, path = story.name("paused"), story.path()
    story.client.queue.upsert(queue)
    story.client.queue.pause(queue)
    assert story.client.queue.get(queue).paused is True
    ids = enqueue(story, queue, path, ["1", "2"])
    passing = story.client.message.publish(url=story.receiver.url(f"{path}-by")).message_id
    story.logs_until(passing, S.DELIVERED)
    assert story.receiver.at(path) == []
    assert story.client.message.cancel_many(ids[:1]) == 1
    story.client.queue.resume(queue)
    assert story.client.queue.get(queue).paused is False
    story.receiver.arrivals(path)
    story.logs_until(ids[1], S.DELIVERED)
    assert story.receiver.bodies(path) == ["2"]


def test_dead_letters_of_a_queue(story):
    queue, path = story.name("dead"), story.path()
    story.receiver.script(path, 500, 200)
    dead, alive = enqueue(story, queue, path, ["dead", "alive"], retries=0)
    story.logs_until(alive, S.DELIVERED)
    [letter] = story.client.dlq.list(filter={"queue": queue}).messages
    assert (letter.message_id, letter.queue) == (dead, queue)


def test_a_group_is_enqueued_endpoint_by_endpoint(story):
    queue, group, path = story.name("queue"), story.name("queued-group"), story.path()
    urls = [story.receiver.url(f"{path}-{end}") for end in ["one", "two"]]
    story.client.url_group.upsert_endpoints(url_group=group, endpoints=[{"url": url} for url in urls])
    answers = story.client.message.enqueue_json(queue=queue, url_group=group, body={"n": 1})
    assert [answer.url for answer in answers] == urls
    for answer, end in zip(answers, ["one", "two"]):
        arrival = story.receiver.arrivals(f"{path}-{end}")[0]
        assert arrival.headers["upstash-message-id"] == answer.message_id
        message = story.client.message.get(answer.message_id)
        assert (message.queue, message.url_group) == (queue, group)


def test_a_batch_mixes_urls_groups_and_queues(story):
    queue, group, path = story.name("queue"), story.name("batch-group"), story.path()
    endpoints = [{"url": story.receiver.url(f"{path}-{end}")} for end in ["one", "two"]]
    story.client.url_group.upsert_endpoints(url_group=group, endpoints=endpoints)
    story.receiver.script(f"{path}-queued", 500, 200)
    queued = {"url": story.receiver.url(f"{path}-queued"), "queue": queue, "retries": 1, "retry_delay": "30"}
    answers = story.client.message.batch(
        [
            {**queued, "body": "1"},
            {"url": story.receiver.url(f"{path}-url"), "body": "plain"},
            {**queued, "body": "2"},
            {"url_group": group, "body": "group"},
            {"url_group": group, "queue": queue, "body": "queued group"},
        ]
    )
    assert [len(answer) if isinstance(answer, list) else 1 for answer in answers] == [1, 1, 1, 2, 2]
    story.receiver.arrivals(f"{path}-queued", 3)
    assert story.receiver.bodies(f"{path}-queued") == ["1", "1", "2"]
    story.receiver.arrivals(f"{path}-url")
    for end in ["one", "two"]:
        story.receiver.arrivals(f"{path}-{end}", 2)
    assert story.client.message.get(answers[0].message_id).queue == queue
    assert story.client.message.get(answers[1].message_id).queue is None
    [json_answer] = story.client.message.batch_json([{"url": queued["url"], "queue": queue, "body": {"n": 3}}])
    assert story.client.message.get(json_answer.message_id).queue == queue


def test_bad_queues_are_rejected(story):
    for name, options in [("with space", {}), ("fine", {"parallelism": 0})]:
        with pytest.raises(QStashError, match="status: 400"):
            story.client.queue.upsert(name, **options)
    with pytest.raises(QStashError, match="status: 404"):
        story.client.queue.pause(story.name("none"))
