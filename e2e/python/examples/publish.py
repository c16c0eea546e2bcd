"""Publish a message with the official SDK: only QSTASH_URL and QSTASH_TOKEN differ from the hosted service."""

import os

from qstash import QStash

client = QStash(os.environ["QSTASH_TOKEN"])
answer = client.message.publish_json(url=os.environ["RECEIVER_URL"], body={"hello": "world"})
print(answer.message_id)
