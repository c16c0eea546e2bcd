"""Follows one tutorial: its files, its commands and its terminals, in an empty directory.

The reader's machine differs from a real one in a few ways only. Ports that the text names are replaced by free ones, because
other tests run at the same time. `cargo run --release --` in a clone starts a server that has been built already; other crates
are compiled without debug information, into a directory that is kept. Programs print each line at once, as they do in a
terminal, and send no statistics to their makers.
"""

import os
import re
import socket
import sys
import time
from pathlib import Path

import match
import needs
from blocks import Block
from server import clean_environment
from terminal import PATIENCE_SECONDS, Failure, Terminal

SERVER_PORT = "8080"
#: Stands for cargo in a clone.
CARGO = """#!/bin/sh
[ "$1 $2 $3" = "run --release --" ] || { echo "the runner has no cargo for: $*" >&2; exit 1; }
shift 3
exec target/release/posthaste "$@"
"""
#: Of an environment that was made for other programs, such as a virtual environment or a script of npm.
FOREIGN = ("npm_lifecycle_", "npm_package_", "VIRTUAL_ENV", "PYTHONPATH", "NODE_OPTIONS", "NODE_PATH", "NODE_ENV", "RAILS_ENV")
#: The terminal of the server, unless the text starts it.
SERVER_TERMINAL = "server"


class Tutorial:
    """A reader in a fresh directory. A tutorial of README.md begins in a clone; others begin with a server that runs."""

    def __init__(self, directory: Path, binary: Path, blocks: list[Block], in_clone: bool):
        self._records = directory / "records"
        self._start = directory / ("posthaste" if in_clone else "empty")
        self._terminals: dict[str, Terminal] = {}
        commands = directory / "bin"
        for made in (self._records, self._start, commands):
            made.mkdir()
        self._ports = free_ports({SERVER_PORT} | {block.options["port"] for block in blocks if "port" in block.options})
        self._needs = needs.of(blocks)
        try:
            path, variables = needs.provide(self._needs, _path_without_environments(), self._start)
        except needs.Missing as missing:
            raise Failure(f": {missing}") from missing
        self._environment = {
            **{name: value for name, value in clean_environment().items() if not name.startswith(FOREIGN)},
            # `dev` reads it as `--port`.
            "QSTASH_DEV_PORT": self._ports[SERVER_PORT],
            "PATH": f"{commands}:{path}",
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",
            "NEXT_TELEMETRY_DISABLED": "1",
            "WRANGLER_SEND_METRICS": "false",
            # Otherwise it writes to the home directory.
            "WRANGLER_LOG_PATH": str(self._records),
            "WRANGLER_REGISTRY_PATH": str(self._records),
            **variables,
        }
        if in_clone:
            (self._start / "target/release").mkdir(parents=True)
            (self._start / "target/release/posthaste").symlink_to(binary)
            (commands / "cargo").write_text(CARGO)
            (commands / "cargo").chmod(0o755)
        else:
            (commands / "posthaste").symlink_to(binary)
        self._needs_server = not in_clone

    def begin(self):
        """Starts the server, unless the text does."""
        if self._needs_server:
            server = Terminal(SERVER_TERMINAL, self._records, self._records, self._environment)
            self._terminals[SERVER_TERMINAL] = server
            server.start("posthaste dev", int(self._ports[SERVER_PORT]))

    def close(self):
        for terminal in reversed(self._terminals.values()):
            terminal.close()
        needs.forget(self._needs, self._start)

    def follow(self, block: Block):
        """Runs a block; raises `Failure`."""
        terminal = self._terminal(block.options.get("terminal", "1"))
        text = with_ports(block.text, self._ports)
        if block.language == "output":
            if not terminal.wait_until(lambda: match.is_shown(text, terminal.printed())):
                raise Failure(f"the terminal does not show it\n--- it shows\n{terminal.printed()}")
        elif "file" in block.options:
            path = terminal.directory / block.options["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif block.language != "bash":
            raise Failure("a program needs a name: file=NAME")
        elif "background" in block.flags:
            terminal.start(text, int(self._ports[block.options["port"]]), _patience(block))
        else:
            self._run(terminal, block, text)

    def _run(self, terminal, block, text):
        is_repeated = "eventually" in block.flags
        deadline = time.monotonic() + _patience(block)
        while True:
            printed = terminal.run(text, is_repeated, _patience(block))
            problem = self._problem(block, printed)
            if problem is None:
                return
            if not is_repeated or time.monotonic() > deadline:
                raise Failure(f"{problem}\n--- printed\n{terminal.printed()}")

    def _problem(self, block, printed):
        if block.expected is None:
            return None
        return match.mismatch(with_ports(block.expected.text, self._ports), block.expected.language, printed)

    def _terminal(self, name):
        if name not in self._terminals:
            self._terminals[name] = Terminal(name, self._records, self._start, self._environment)
        return self._terminals[name]


def _patience(block):
    return int(block.options.get("seconds", PATIENCE_SECONDS))


def free_ports(named: set[str]) -> dict[str, str]:
    """A free port for each one that the text names."""
    probes = [socket.socket() for _ in named]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return {name: str(probe.getsockname()[1]) for name, probe in zip(sorted(named), probes)}
    finally:
        for probe in probes:
            probe.close()


def with_ports(text: str, ports: dict[str, str]) -> str:
    """The text with all its ports replaced."""
    return re.sub(r"\b(%s)\b" % "|".join(ports), lambda found: ports[found[0]], text)


def _path_without_environments():
    """The search path without the virtual environment that runs this."""
    own = Path(sys.prefix) / "bin"
    return ":".join(part for part in os.environ["PATH"].split(":") if sys.prefix == sys.base_prefix or Path(part) != own)
