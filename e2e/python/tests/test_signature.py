"""Signatures: the SDK's Receiver verifies real deliveries, and key rotation."""

import pytest
from qstash import Receiver
from qstash.errors import SignatureError
from support.server import USERS


def delivery(story, body, user=0, query=""):
    path = story.path()
    url = story.receiver.url(path + query)
    story.clients[user].message.publish(url=url, body=body)
    [arrival] = story.receiver.arrivals(path)
    return {"signature": arrival.headers["upstash-signature"], "body": arrival.body.decode(), "url": url}


def verifier(keys):
    return Receiver(keys.current, keys.next)


@pytest.mark.parametrize("body", ["text", '{"a": 1}', "", "grüße ☃"])
def test_real_deliveries_are_accepted(story, body):
    verifier(USERS[0]).verify(**delivery(story, body, query="?a=1&b=%20"))


def test_forgeries_are_rejected(story):
    genuine = delivery(story, "genuine")
    for forged in [{"body": "forged"}, {"url": genuine["url"] + "x"}, {"signature": genuine["signature"][:-4] + "AAAA"}]:
        with pytest.raises(SignatureError):
            verifier(USERS[0]).verify(**{**genuine, **forged})
    with pytest.raises(SignatureError):
        verifier(USERS[1]).verify(**genuine)


def test_keys_are_read_and_rotated(story):
    """Each client rotates the keys of a separate user, so that they do not disturb each other."""
    user = 2 if type(story.client).__name__ == "QStash" else 3
    client = story.clients[user]
    before = client.signing_key.get()
    assert (before.current, before.next) == (USERS[user].current, USERS[user].next)
    rotated = client.signing_key.rotate()
    assert rotated.current == before.next
    assert rotated.next not in (before.current, before.next)
    assert client.signing_key.get() == rotated
    signed = delivery(story, "rotated", user=user)
    verifier(before).verify(**signed)
    verifier(rotated).verify(**signed)
