"""Schedules that have fired. `support/firing.py` creates them, before all other tests."""

import json

import pytest
from qstash.log import LogState
from qstash.schedule import ScheduleState
from support.firing import MINUTE_PATIENCE_SECONDS
from support.wait import eventually

pytestmark = pytest.mark.minute


@pytest.fixture
def firing(kind, firings):
    return firings[kind]


def arrivals(story, path, count=1):
    return story.receiver.arrivals(path, count, MINUTE_PATIENCE_SECONDS)


def test_a_schedule_sends_its_message_with_all_its_settings(story, firing):
    first = arrivals(story, f"{firing.path}-whole")[0]
    minute = int(first.at) // 60 * 60
    assert minute > firing.created_at and first.at - minute < 10
    assert (first.method, first.body, first.target) == ("PUT", b'{"n": 1}', f"{firing.path}-whole?q=1")
    assert (first.headers["x-mine"], first.headers["content-type"]) == ("1", "application/json")
    assert first.headers["upstash-schedule-id"] == firing.whole
    called = arrivals(story, f"{firing.path}-callback")[0]
    payload = json.loads(called.body)
    message_id = first.headers["upstash-message-id"]
    assert (payload["scheduleId"], payload["sourceMessageId"]) == (firing.whole, message_id)
    assert called.headers["x-back"] == "2"
    logs = story.client.log.list(filter={"schedule_id": firing.whole, "message_id": message_id}).logs
    assert [log.state for log in logs][::-1] == [LogState.CREATED, LogState.ACTIVE, LogState.DELIVERED]
    assert all((log.schedule_id, log.label) == (firing.whole, "scheduled") for log in logs)


def test_the_schedule_shows_its_last_firing(story, firing):
    arrivals(story, f"{firing.path}-whole")

    def ended():
        schedule = story.client.schedule.get(firing.whole)
        states = (schedule.last_schedule_states or {}).values()
        return schedule if set(states) == {ScheduleState.SUCCESS} else None

    schedule = eventually("success", ended)
    assert schedule.last_schedule_time % 60_000 == 0
    assert schedule.next_schedule_time == schedule.last_schedule_time + 60_000
    assert len(schedule.last_schedule_states) == 1


def test_a_failing_schedule_has_dead_letters(story, firing):
    first = arrivals(story, f"{firing.path}-fails")[0]
    letter = story.dead_letter(first.headers["upstash-message-id"])
    assert letter.schedule_id == firing.fails
    letters = story.client.dlq.list(filter={"schedule_id": firing.fails}).messages
    assert letter in letters
    failure = json.loads(arrivals(story, f"{firing.path}-failure")[0].body)
    assert failure["scheduleId"] == firing.fails

    def has_failed():
        return ScheduleState.FAIL in story.client.schedule.get(firing.fails).last_schedule_states.values()

    eventually("the failure in the schedule's own words", has_failed)


def test_a_queue_and_a_group_are_fed(story, firing):
    first = arrivals(story, f"{firing.path}-queued")[0]
    assert first.body == b"queued"
    logs = story.client.log.list(filter={"queue": firing.queue}).logs
    assert first.headers["upstash-message-id"] in [log.message_id for log in logs]
    assert story.client.queue.get(firing.queue).parallelism == 1
    for end in ["one", "two"]:
        arrival = arrivals(story, f"{firing.path}-group-{end}")[0]
        assert arrival.headers["upstash-topic-name"] == firing.group
        assert arrival.headers["upstash-schedule-id"] == firing.grouped


def test_paused_and_deleted_ones_do_not_fire(story, firing):
    arrivals(story, f"{firing.path}-whole")
    assert story.receiver.at(f"{firing.path}-paused") == story.receiver.at(f"{firing.path}-deleted") == []
    assert story.client.schedule.get(firing.paused).last_schedule_time is None
