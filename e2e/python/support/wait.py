"""Waiting for conditions. Tests never sleep: they name a condition and a deadline."""

import time
from typing import Callable, TypeVar

T = TypeVar("T")

#: Longest wait before a test fails. Generous, for busy machines.
PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.015


def eventually(what: str, probe: Callable[[], T], patience: float = PATIENCE_SECONDS) -> T:
    """Calls `probe` until it returns a truthy value, and returns that."""
    deadline = time.monotonic() + patience
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience} s in vain for: {what}")
        time.sleep(_POLL_SECONDS)
