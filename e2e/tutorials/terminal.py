"""One terminal of a reader: a shell that keeps its directory and its variables from one block to the next."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

#: Longest wait for a command. Installing packages takes longest.
PATIENCE_SECONDS = 120
#: Interval of polling.
POLL_SECONDS = 0.05


class Failure(Exception):
    """A tutorial behaved differently from its text."""


class Terminal:
    """A separate bash. Commands are typed into it, so programs do not see variables that are not exported."""

    def __init__(self, name: str, records: Path, directory: Path, environment: dict):
        self._records = records / f"terminal-{name}"
        self._records.mkdir()
        self._count = 0
        self._is_busy = False
        self._directory = directory
        # An error ends the shell, and that is how the runner notices it.
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    @property
    def directory(self) -> Path:
        """The current directory of the shell."""
        return self._directory

    def printed(self) -> str:
        """Everything that the terminal has shown, stderr included."""
        return "".join(self._text(number, kind) for number in range(1, self._count + 1) for kind in ("out", "err"))

    def run(self, commands: str, may_fail: bool = False, patience: int = PATIENCE_SECONDS) -> str:
        """Types commands and waits until they have ended; returns what they printed to stdout.

        Commands that may fail leave no trace in the shell."""
        done = self._type(commands, may_fail)
        if not self.wait_until(done.exists, patience):
            report = f"--- printed\n{self._text(self._count, 'out')}--- to stderr\n{self._text(self._count, 'err')}"
            how = "failed" if self._has_ended() else f"took longer than {patience} s"
            raise Failure(f"a command {how}\n{report}")
        self._directory = Path(done.read_text().rstrip("\n"))
        return self._text(self._count, "out")

    def start(self, commands: str, port: int, patience: int = PATIENCE_SECONDS):
        """Types commands that run until they are stopped, and waits until their port is open."""
        self._type(commands)
        self._is_busy = True
        if not self.wait_until(lambda: _is_open(port), patience):
            raise Failure(f"nothing listens on port {port}\n{self.printed()}")

    def wait_until(self, is_true, patience: int = PATIENCE_SECONDS) -> bool:
        """Whether it becomes true before the shell ends and patience is over."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if is_true():
                return True
            if self._has_ended():
                return is_true()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._shell.wait(POLL_SECONDS)
        return False

    def close(self):
        """Ends the shell with all programs that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGTERM)
        self._shell.stdin.close()
        try:
            self._shell.wait(PATIENCE_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._shell.pid, signal.SIGKILL)

    def _type(self, commands, may_fail=False):
        if self._is_busy or self._has_ended():
            raise Failure("this terminal takes no commands: a program runs in it, or a command before has failed")
        self._count += 1
        script, out, err, done = (self._records / f"{self._count}.{kind}" for kind in ("sh", "out", "err", "done"))
        script.write_text(commands, encoding="utf-8")
        reading = f"( . '{script}' || true )" if may_fail else f". '{script}'"
        # `pwd` into a file of another name first: a file that exists must be complete.
        self._shell.stdin.write(f"{reading} >'{out}' 2>'{err}' </dev/null\npwd >'{done}.part'\nmv '{done}.part' '{done}'\n")
        self._shell.stdin.flush()
        return done

    def _text(self, number, kind):
        path = self._records / f"{number}.{kind}"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def _has_ended(self):
        return self._shell.poll() is not None


def _is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
