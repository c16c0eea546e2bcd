"""Schedules: their settings. Their firing is in test_at_the_minute.py."""

import time

import pytest
from qstash.errors import QStashError

NEVER = "1 1 31 1 1"
URL = "https://example.com"


def test_a_schedule_with_every_setting_is_shown_completely(story):
    schedule_id = story.name("whole")
    created = story.client.schedule.create_json(
        schedule_id=schedule_id,
        destination=f"{URL}/a?b=1",
        cron=NEVER,
        body={"n": 1},
        method="PUT",
        headers={"X-Mine": "1"},
        callback_headers={"Forward-X-Back": "2"},
        failure_callback_headers={"Upstash-Failure-Callback-Forward-X-Back": "3"},
        retries=5,
        retry_delay="7000 * retried",
        callback=f"{URL}/callback",
        failure_callback=f"{URL}/failure",
        delay=10,
        timeout="1m",
        queue="scheduled",
        flow_control={"key": "scheduled", "parallelism": 2, "rate": 3, "period": "1h30m3s"},
        label="mine",
    )
    assert created == schedule_id
    schedule = story.client.schedule.get(schedule_id)
    assert (schedule.schedule_id, schedule.destination, schedule.cron) == (schedule_id, f"{URL}/a?b=1", NEVER)
    assert (schedule.body, schedule.body_base64, schedule.method) == ('{"n": 1}', None, "PUT")
    assert schedule.headers == {"Content-Type": ["application/json"], "X-Mine": ["1"]}
    assert schedule.callback_headers == {"X-Back": ["2"]}
    assert schedule.failure_callback_headers == {"X-Back": ["3"]}
    assert (schedule.retries, schedule.retry_delay_expression) == (5, "7000 * retried")
    assert (schedule.callback, schedule.failure_callback) == (f"{URL}/callback", f"{URL}/failure")
    assert (schedule.delay, schedule.timeout, schedule.queue, schedule.label) == (10, 60, "scheduled", "mine")
    limits = schedule.flow_control
    assert (limits.key, limits.parallelism, limits.rate, limits.period) == ("scheduled", 2, 3, 5_403)
    assert (schedule.paused, schedule.caller_ip, schedule.error) == (False, "127.0.0.1", None)
    assert schedule.last_schedule_time is None and schedule.last_schedule_states is None
    assert schedule.next_schedule_time > time.time() * 1000
    assert [listed for listed in story.client.schedule.list() if listed.schedule_id == schedule_id] == [schedule]
    story.client.schedule.delete(schedule_id)
    assert schedule_id not in [listed.schedule_id for listed in story.client.schedule.list()]
    with pytest.raises(QStashError, match="status: 404"):
        story.client.schedule.get(schedule_id)


def test_defaults(story):
    schedule_id = story.client.schedule.create(destination=URL, cron="*/10 * * * *")
    assert schedule_id.startswith("scd_")
    schedule = story.client.schedule.get(schedule_id)
    assert (schedule.cron, schedule.method, schedule.retries, schedule.body) == ("*/10 * * * *", "POST", 3, None)
    assert not schedule.headers and schedule.flow_control is None and schedule.queue is None
    story.client.schedule.delete(schedule_id)


def test_the_same_id_again_replaces_everything(story):
    schedule_id = story.name("again")
    story.client.schedule.create(
        schedule_id=schedule_id, destination=URL, cron=NEVER, body="old", headers={"X-Old": "1"}, queue="old", label="old"
    )
    story.client.schedule.create(schedule_id=schedule_id, destination=f"{URL}/new", cron="@daily")
    schedule = story.client.schedule.get(schedule_id)
    assert (schedule.destination, schedule.cron, schedule.body) == (f"{URL}/new", "@daily", None)
    assert not schedule.headers and schedule.queue is None and schedule.label is None
    assert len([1 for listed in story.client.schedule.list() if listed.schedule_id == schedule_id]) == 1
    story.client.schedule.delete(schedule_id)


def test_pause_and_resume(story):
    schedule_id = story.client.schedule.create(destination=URL, cron=NEVER)
    for call, expected in [("pause", True), ("pause", True), ("resume", False), ("resume", False)]:
        getattr(story.client.schedule, call)(schedule_id)
        assert story.client.schedule.get(schedule_id).paused is expected
    story.client.schedule.delete(schedule_id)


def test_groups_binary_bodies_and_redaction(story):
    group = story.name("scheduled-group")
    story.client.url_group.upsert_endpoints(url_group=group, endpoints=[{"url": URL}])
    schedule_id = story.client.schedule.create(
        destination=group, cron=NEVER, body=b"\x00\xff\xfe", content_type="application/octet-stream"
    )
    schedule = story.client.schedule.get(schedule_id)
    assert (schedule.destination, schedule.body, schedule.body_base64) == (group, None, "AP/+")
    redacted = story.client.schedule.create(
        destination=URL, cron=NEVER, body="secret", headers={"X-Secret": "secret"}, redact={"body": True, "header": True}
    )
    shown = story.client.schedule.get(redacted)
    assert shown.body.startswith("REDACTED:") and shown.headers["X-Secret"][0].startswith("REDACTED:")
    for created in [schedule_id, redacted]:
        story.client.schedule.delete(created)


def test_wrong_settings_are_rejected(story):
    for options, status in [
        ({"cron": "* * * *"}, 400),
        ({"cron": "61 * * * *"}, 400),
        ({"cron": NEVER, "schedule_id": "with space"}, 400),
        ({"cron": NEVER, "queue": "with space"}, 400),
        ({"cron": NEVER, "destination": story.name("no-such-group")}, 404),
    ]:
        with pytest.raises(QStashError, match=f"status: {status}"):
            story.client.schedule.create(**{"destination": URL, **options})
