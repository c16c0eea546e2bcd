"""Workflows of a Python program: all features of its SDK."""

import hashlib
import json

from conftest import Story
from support.receiver import Answer
from support.wait import eventually

MEGABYTE = 1024 * 1024
#: The first retry comes after 12 seconds, and this SDK cannot change it.
FIRST_RETRY_PATIENCE_SECONDS = 40.0
#: The SDK decodes megabytes slowly, and all of them for each call.
LARGE_PATIENCE_SECONDS = 90.0


def test_steps_and_sleeps(story: Story) -> None:
    run = story.trigger("/steps", {"order": 7, "name": "žluťoučký 🐎"}, {"X-Tenant": "t1"})
    first = {"first": f"{run} first", "payload": {"order": 7, "name": "žluťoučký 🐎"}}
    outputs = story.outputs(run)
    assert json.loads(outputs["first"]) == first
    assert json.loads(outputs["second"]) is None
    assert json.loads(json.loads(outputs["třetí"])) == [first, None, "t1"]
    assert [effect for effect in story.program.effects if effect.startswith(run)] == [f"{run} first", f"{run} second"]
    # The first call, three steps and two sleeps.
    story.exactly(run, *["step"] * 6)


def test_calls(story: Story) -> None:
    story.third.script("/call", Answer(201, b'{"id": 1}', {"Content-Type": "application/json"}))
    options = {"url": story.third.url("/call"), "method": "POST", "body": {"n": 1}, "headers": {"x-mine": "m"}}
    run = story.trigger("/call", options)
    assert json.loads(story.outputs(run)["keep"]) == [201, {"id": 1}]
    story.exactly(run, "step", "step", "callback", "step", "step")
    [request] = story.third.at("/call")
    assert (request.method, json.loads(request.body), request.headers["x-mine"]) == ("POST", {"n": 1}, "m")


def test_a_call_that_fails_is_a_result(story: Story) -> None:
    story.third.script("/fails", Answer(500, b"broken"))
    run = story.trigger("/call", {"url": story.third.url("/fails")})
    assert json.loads(story.outputs(run)["keep"]) == [500, "broken"]
    assert len(story.third.at("/fails")) == 1
    story.exactly(run, "step", "step", "callback", "step", "step")


def test_a_failure_function_is_called_once(story: Story) -> None:
    run = story.trigger("/boom", {"order": 7})
    log = story.reaches(run, "RUN_FAILED", FIRST_RETRY_PATIENCE_SECONDS)
    assert [group["type"] for group in log["steps"]] == ["sequential", "sequential", "next"]
    told = eventually("somebody to be told", lambda: [told for told in story.program.told if told[0] == run])
    story.exactly(run, "step", "step 500", "step 500", "failure")
    [(_, payload, status, response)] = told
    assert (payload, status) == ({"order": 7}, 500)
    assert "boom" in response


def test_a_function_that_returns_before_its_first_step_fails(story: Story) -> None:
    run = story.trigger("/guarded", {}, {"Authorization": "Bearer right"})
    story.reaches(run, "RUN_SUCCESS")
    assert f"{run} inside" in story.program.effects
    story.exactly(run, "step", "step")


def test_large_payloads_are_always_sent_in_full(story: Story) -> None:
    text = "".join(f"{n} žluť\n" for n in range(MEGABYTE // 6))
    run = story.trigger("/large", text)
    outputs = story.outputs(run, LARGE_PATIENCE_SECONDS)
    assert json.loads(outputs["grow"]) == text * 2
    assert json.loads(outputs["measure"]) == hashlib.sha256((text * 2).encode()).hexdigest()
    story.exactly(run, *["step"] * 3)
    # This SDK cannot fetch them.
    first, *others = [len(call.body) for call in story.program.calls_of(run)]
    assert first > 2 * MEGABYTE and all(length > 8 * MEGABYTE for length in others)


def test_a_call_with_a_response_of_megabytes(story: Story) -> None:
    answer = "x" * (3 * MEGABYTE)
    story.third.script("/large", Answer(200, answer.encode()))
    run = story.trigger("/call", {"url": story.third.url("/large"), "method": "POST", "body": "y" * MEGABYTE})
    assert json.loads(story.outputs(run, LARGE_PATIENCE_SECONDS)["keep"]) == [200, answer]
    [request] = story.third.at("/large")
    assert len(request.body) >= MEGABYTE
    story.exactly(run, "step", "step", "callback", "step", "step")


def test_a_killed_server_continues(story: Story) -> None:
    run = story.trigger("/steps", {"n": 1})
    story.server.restart()
    outputs = story.outputs(run)
    assert json.loads(outputs["first"])["payload"] == {"n": 1}
    story.program.idle()
