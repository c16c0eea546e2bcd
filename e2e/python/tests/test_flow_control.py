"""Flow control: rates and parallelism per key, and operator actions on a key."""

import threading
import time

import pytest
from qstash.errors import QStashError
from qstash.log import LogState
from support.receiver import Answer, keeps_rate
from support.wait import eventually

S = LogState


def publish(story, path, key, count=1, **limits):
    url = story.receiver.url(path)
    return [
        story.client.message.publish(url=url, body=str(n), flow_control={"key": key, **limits}).message_id
        for n in range(count)
    ]


def test_a_key_exists_after_the_publish(story):
    key = story.name("key")
    publish(story, story.path(), key, parallelism=5, rate=10, period="1m")
    info = story.client.flow_control.get(key)
    assert (info.key, info.parallelism_max, info.rate_max, info.rate_period) == (key, 5, 10, 60)
    assert (info.rate_count, info.wait_list_size) == (1, 0)
    assert (info.is_paused, info.is_pinned_parallelism, info.is_pinned_rate) == (False, False, False)
    assert info.rate_period_start > 0
    with pytest.raises(QStashError, match="status: 404"):
        story.client.flow_control.get(story.name("unknown"))


def test_messages_show_their_limits(story):
    key, url = story.name("shown"), story.receiver.url("/later")
    for given, shown in [
        ({"parallelism": 3}, (3, None, 1)),
        ({"rate": 7}, (None, 7, 1)),
        ({"rate": 1, "period": 2}, (None, 1, 2)),
        ({"rate": 1, "period": "1d"}, (None, 1, 86_400)),
        ({"rate": 1, "period": "1h30m3s", "parallelism": 2}, (2, 1, 5_403)),
    ]:
        message_id = story.client.message.publish(url=url, delay="1h", flow_control={"key": key, **given}).message_id
        limits = story.client.message.get(message_id).flow_control
        assert (limits.key, limits.parallelism, limits.rate, limits.period) == (key, *shown)
        [log] = story.client.log.list(filter={"message_id": message_id}).logs
        assert log.flow_control == limits
        story.client.message.cancel(message_id)


def test_parallelism(story):
    key, path = story.name("one"), story.path()
    release = threading.Event()
    story.receiver.script(path, Answer(200, after=release))
    ids = publish(story, path, key, count=3, parallelism=1)
    story.receiver.arrivals(path)
    info = story.client.flow_control.get(key)
    assert (info.parallelism_count, info.wait_list_size) == (1, 2)
    release.set()
    for message_id in ids:
        story.logs_until(message_id, S.DELIVERED)
    assert story.receiver.bodies(path) == ["0", "1", "2"]


def test_the_rate_holds_by_the_receivers_clock(story):
    key, path = story.name("rate"), story.path()
    since = time.time()
    publish(story, path, key, count=5, rate=2, period=1)
    keeps_rate(story.receiver.arrivals(path, 5), 2, 1, since)


def test_pause_and_resume(story):
    key, path = story.name("paused"), story.path()
    story.client.flow_control.pause(key)
    publish(story, path, key, count=2, parallelism=2)
    info = story.client.flow_control.get(key)
    assert (info.is_paused, info.wait_list_size, info.parallelism_count) == (True, 2, 0)
    story.client.flow_control.resume(key)
    story.receiver.arrivals(path, 2)
    assert story.client.flow_control.get(key).is_paused is False


def test_pin_and_unpin(story):
    key, path = story.name("pinned"), story.path()

    def limits():
        info = story.client.flow_control.get(key)
        pins = (info.is_pinned_parallelism, info.is_pinned_rate)
        return (info.parallelism_max, info.rate_max, info.rate_period, *pins)

    publish(story, path, key, parallelism=5, rate=10, period=30)
    story.client.flow_control.pin(key, {"parallelism": 3, "rate": 20, "period": 60})
    assert limits() == (3, 20, 60, True, True)
    publish(story, path, key, parallelism=8, rate=9, period=10)
    assert limits() == (3, 20, 60, True, True)
    story.client.flow_control.unpin(key, {"parallelism": True, "rate": True})
    assert limits() == (3, 20, 60, False, False)
    publish(story, path, key, parallelism=8, rate=9, period=10)
    assert limits() == (8, 9, 10, False, False)
    story.client.flow_control.pin(key, {"rate": 1})
    story.client.flow_control.unpin(key, {"parallelism": True, "rate": False})
    assert story.client.flow_control.get(key).is_pinned_rate is True


def test_reset_rate(story):
    key, path = story.name("reset"), story.path()
    publish(story, path, key, count=2, rate=1, period=60)
    story.receiver.arrivals(path)
    assert story.client.flow_control.get(key).rate_count == 1
    story.client.flow_control.reset_rate(key)
    story.receiver.arrivals(path, 2)
    idle = story.name("idle")
    publish(story, path, idle, rate=5, period=60)
    story.client.flow_control.reset_rate(idle)
    assert story.client.flow_control.get(idle).rate_count == 0


def test_global_parallelism(story):
    client, path = story.clients[1], story.path()
    release = threading.Event()
    story.receiver.script(path, Answer(200, after=release))
    for _ in range(2):
        client.message.publish(url=story.receiver.url(path))
    story.receiver.arrivals(path, 2)
    info = client.flow_control.get_global_parallelism()
    assert (info.parallelism_max, info.parallelism_count) == (1000, 2)
    release.set()
    eventually("none under way", lambda: client.flow_control.get_global_parallelism().parallelism_count == 0)


def test_batches_and_dead_letters_carry_the_key(story):
    key, path = story.name("batch"), story.path()
    story.receiver.script(path, 500)
    limits = {"key": key, "parallelism": 2, "rate": 3, "period": 4}
    item = {"url": story.receiver.url(path), "retries": 0, "flow_control": limits}
    [answer] = story.client.message.batch([item])
    found = story.dead_letter(answer.message_id).flow_control
    assert (found.key, found.parallelism, found.rate, found.period) == (key, 2, 3, 4)


def test_invalid_limits_are_rejected(story):
    for limits in [{"parallelism": -1}, {"rate": 1, "period": "8d"}]:
        with pytest.raises(QStashError, match="status: 400"):
            publish(story, "/unused", story.name("refused"), **limits)
