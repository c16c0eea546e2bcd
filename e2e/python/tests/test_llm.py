"""Language models: providers of the SDK are URLs with a header."""

import base64
import json

from qstash.chat import custom, openai
from support.receiver import Answer

QUESTION = {"model": "some-model", "messages": [{"role": "user", "content": "hello?"}]}


def test_a_model_with_its_own_url(story):
    path = story.path()
    story.receiver.script(f"{path}/v1/chat/completions", Answer(200, b'{"id": "1"}'))
    callback = story.receiver.url(f"{path}/callback")

    def api():
        provider = custom(base_url=story.receiver.url(f"{path}/v1/chat/completions"), token="model-token")
        return {"name": "llm", "provider": provider}

    story.client.message.publish_json(api=api(), body=QUESTION, callback=callback)
    story.client.message.enqueue_json(queue=story.name("llm"), api=api(), body=QUESTION, callback=callback)
    story.client.message.batch_json([{"api": api(), "body": QUESTION, "callback": callback}])
    for arrival in story.receiver.arrivals(f"{path}/v1/chat/completions", 3):
        assert arrival.headers["authorization"] == "Bearer model-token"
        assert arrival.headers["content-type"] == "application/json"
        assert json.loads(arrival.body) == QUESTION
    for called in story.receiver.arrivals(f"{path}/callback", 3):
        assert base64.b64decode(json.loads(called.body)["body"]) == b'{"id": "1"}'


def test_openai(story):
    """The SDK fixes its host, so the message is read back and never sent."""
    message_id = story.client.message.publish_json(
        api={"name": "llm", "provider": openai("secret")}, body=QUESTION, callback="https://example.com", delay="1h"
    ).message_id
    message = story.client.message.get(message_id)
    assert message.url == "https://api.openai.com/v1/chat/completions"
    assert message.headers == {"Authorization": ["Bearer secret"], "Content-Type": ["application/json"]}
    story.client.message.cancel(message_id)
