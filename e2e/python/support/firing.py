"""Schedules that are created early in the run and checked when their minute has come."""

import time
from typing import Any

from support.receiver import Receiver
from support.wait import eventually

EVERY_MINUTE = "* * * * *"
#: Longest wait for the next minute and its consequences.
MINUTE_PATIENCE_SECONDS = 90.0
#: A schedule that is set up just before the minute might fire during the setup.
_HEADSTART_SECONDS = 15.0


def away_from_the_minute() -> None:
    eventually("some time before the next minute", lambda: time.time() % 60 < 60 - _HEADSTART_SECONDS)


class Firing:
    """The schedules of one client."""

    def __init__(self, client: Any, receiver: Receiver, kind: str) -> None:
        self.path = f"/firing-{kind}"
        self.group = f"firing-{kind}"
        self.queue = f"firing-{kind}"
        url = receiver.url(self.path)
        self.created_at = time.time()

        def every_minute(end: str, **options: Any) -> str:
            return str(client.schedule.create(destination=f"{url}-{end}", cron=EVERY_MINUTE, **options))

        receiver.script(f"{self.path}-fails", 500)
        self.whole = str(
            client.schedule.create_json(
                destination=f"{url}-whole?q=1",
                cron=EVERY_MINUTE,
                body={"n": 1},
                method="PUT",
                headers={"X-Mine": "1"},
                callback=f"{url}-callback",
                callback_headers={"Forward-X-Back": "2"},
                label="scheduled",
            )
        )
        self.fails = every_minute("fails", retries=0, failure_callback=f"{url}-failure")
        self.queued = every_minute("queued", queue=self.queue, body="queued")
        self.paused = every_minute("paused")
        client.schedule.pause(self.paused)
        client.schedule.delete(every_minute("deleted"))
        endpoints = [{"url": f"{url}-group-{end}"} for end in ["one", "two"]]
        client.url_group.upsert_endpoints(url_group=self.group, endpoints=endpoints)
        self.grouped = str(client.schedule.create(destination=self.group, cron=EVERY_MINUTE))
