"""URL groups: one publish, one message for each endpoint."""

import uuid

import pytest
from qstash.errors import QStashError


def group_of(story, *names):
    group = f"group-{uuid.uuid4().hex}"
    endpoints = [{"name": name, "url": story.receiver.url(f"/{group}-{name.split()[0]}")} for name in names]
    story.client.url_group.upsert_endpoints(url_group=group, endpoints=endpoints)
    return group, endpoints


def test_endpoints_are_added_listed_and_removed(story):
    group, endpoints = group_of(story, "First endpoint", "two")
    found = story.client.url_group.get(group)
    assert found.name == group
    assert [(endpoint.name, endpoint.url) for endpoint in found.endpoints] == [
        (endpoint["name"], endpoint["url"]) for endpoint in endpoints
    ]
    assert group in [listed.name for listed in story.client.url_group.list()]
    story.client.url_group.remove_endpoints(url_group=group, endpoints=[{"name": "two"}])
    assert len(story.client.url_group.get(group).endpoints) == 1
    story.client.url_group.delete(group)
    story.client.url_group.delete(group)
    with pytest.raises(QStashError, match=f"topic {group} not found"):
        story.client.url_group.get(group)


def test_a_publish_reaches_every_endpoint(story):
    group, endpoints = group_of(story, "one", "two")
    responses = story.client.message.publish_json(url_group=group, body={"n": 1})
    assert [response.url for response in responses] == [endpoint["url"] for endpoint in endpoints]
    for response, name in zip(responses, ["one", "two"]):
        request = story.receiver.arrivals(f"/{group}-{name}")[0]
        assert request.headers["upstash-message-id"] == response.message_id
        assert request.headers["upstash-topic-name"] == group
    message = story.client.message.get(responses[0].message_id)
    assert (message.url_group, message.endpoint) == (group, "one")


def test_a_batch_returns_a_list_for_a_group(story):
    group, _ = group_of(story, "one", "two")
    url, both = story.client.message.batch_json(
        [{"url": story.receiver.url(f"/{group}-url"), "body": 1}, {"url_group": group, "body": 2}]
    )
    assert url.message_id and len(both) == 2
    for name in ["url", "one", "two"]:
        story.receiver.arrivals(f"/{group}-{name}")
