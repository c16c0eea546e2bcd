"""Waiting for conditions. Tests never sleep: they say what they wait for and how long it may take."""

import time
from typing import Callable, TypeVar

T = TypeVar("T")

#: How long anything may take before a test fails. Generous, for busy machines.
PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.015


def eventually(what: str, probe: Callable[[], T], patience: float = PATIENCE_SECONDS) -> T:
    """Calls `probe` until it gives something truthy, and returns that."""
    deadline = time.monotonic() + patience
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience} s in vain for: {what}")
        time.sleep(_POLL_SECONDS)
