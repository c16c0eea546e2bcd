"""One interface for the SDK's two clients, so that each test runs with both."""

import asyncio
from typing import Any

from qstash import AsyncQStash, QStash


def sync_client(url: str, token: str) -> QStash:
    return QStash(token, base_url=url, retry=False)


class AsyncioClient:
    """Runs every call of the asyncio client to its end, in one event loop."""

    def __init__(self, url: str, token: str, loop: asyncio.AbstractEventLoop) -> None:
        self._client = AsyncQStash(token, base_url=url, retry=False)
        self._loop = loop

    def __getattr__(self, name: str) -> "_Calls":
        return _Calls(getattr(self._client, name), self._loop)


class _Calls:
    def __init__(self, api: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._api = api
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._api, name)
        return lambda *args, **options: self._loop.run_until_complete(method(*args, **options))
