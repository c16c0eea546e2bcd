"""The place for checks of the documentation's Python examples.

Every `examples/*.py` is run as it stands, with QSTASH_URL, QSTASH_TOKEN and RECEIVER_URL set; it has to
end with 0 and to deliver something to the receiver.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.receiver import Receiver
from support.server import USERS, Server
from support.wait import PATIENCE_SECONDS

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_delivers(example: Path, server: Server, receiver: Receiver):
    path = f"/example-{example.stem}"
    environment = {
        **os.environ,
        "QSTASH_URL": server.url,
        "QSTASH_TOKEN": USERS[0].token,
        "RECEIVER_URL": receiver.url(path),
    }
    result = subprocess.run(
        [sys.executable, str(example)], env=environment, timeout=PATIENCE_SECONDS, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    receiver.arrivals(path)
