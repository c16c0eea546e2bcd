"""Logs: enums, filters, pages."""

import base64
import time

from qstash.log import LogState

S = LogState


def deliver(story, **options):
    message_id = story.client.message.publish(
        **{"url": story.receiver.url("/log"), "body": "grüße", **options}
    ).message_id
    story.logs_until(message_id, S.DELIVERED)
    return message_id


def test_a_delivery_is_three_lines_newest_first(story):
    url = story.receiver.url(story.path())
    message_id = deliver(story, url=url, label="three", headers={"X-A": "1"}, timeout=30)
    listed = story.client.log.list(filter={"message_id": message_id})
    assert listed.cursor is None
    assert [log.state for log in listed.logs] == [S.DELIVERED, S.ACTIVE, S.CREATED]
    for log in listed.logs:
        assert (log.message_id, log.url, log.label, log.method) == (message_id, url, "three", "POST")
        assert base64.b64decode(log.body_base64).decode() == "grüße"
        assert log.headers == {"X-A": ["1"]}
        assert log.timeout == 30_000
        assert log.flow_control is None
    times = [log.time for log in listed.logs]
    assert times == sorted(times, reverse=True)


def test_logs_can_be_filtered_by_every_state(story):
    message_id = deliver(story)
    for state in S:
        logs = story.client.log.list(filter={"message_id": message_id, "state": state}).logs
        expected = {S.CREATED: 1, S.ACTIVE: 1, S.DELIVERED: 1, S.IN_PROGRESS: 1}.get(state, 0)
        assert len(logs) == expected, state


def test_filters(story):
    label, url = story.name("label"), story.receiver.url(story.path())
    first, second = deliver(story, label=label), deliver(story, label=label, url=url)

    def listed(**filter):
        return [log.message_id for log in story.client.log.list(filter={"state": S.CREATED, **filter}).logs]

    now = int(time.time() * 1000)
    assert listed(label=label) == [second, first]
    assert listed(url=url) == [second]
    assert listed(message_ids=[first, second]) == [second, first]
    assert listed(label=label, from_time=now - 60_000, to_time=now + 60_000) == [second, first]
    assert listed(label=label, to_time=now - 60_000) == []
    assert listed(label=label, url_group="none") == []


def test_pages(story):
    label = story.name("pages")
    for _ in range(3):
        deliver(story, label=label)
    whole = story.client.log.list(filter={"label": label}).logs
    assert len(whole) == 9
    paged, cursor = [], None
    while True:
        page = story.client.log.list(filter={"label": label}, count=4, cursor=cursor)
        paged += page.logs
        cursor = page.cursor
        if cursor is None:
            break
    assert paged == whole
