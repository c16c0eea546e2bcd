"""Runs the blocks of one page, in order, against a fresh server and a receiver."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import match
from blocks import CODE, Block
from receiver import Receiver
from server import DEV_USER, PATIENCE_SECONDS, Server, clean_environment

#: Runs a block of bash; later blocks see the variables that it sets.
BASH = """set -a
trap 'env -0 > "$DOCS_STATE"' EXIT
"""
#: Never carried from one block to the next.
VOLATILE = {"_", "SHLVL", "PWD", "OLDPWD", "DOCS_STATE"}


class Failure(Exception):
    """A block behaved differently from its page."""


class Page:
    """A fresh directory with a server, and the variables that the blocks have set so far."""

    def __init__(self, directory: Path, tools):
        self._directory = directory
        self._tools = tools
        self._background: list[subprocess.Popen] = []
        self._count = 0
        (directory / "bin").mkdir()
        (directory / "bin" / "posthaste").symlink_to(tools.binary)
        (directory / "node_modules").symlink_to(tools.node_modules)
        self._receiver = Receiver()
        self._server = Server(tools.binary, directory, "--data-dir", "posthaste-data")
        self._fixed = {
            **DEV_USER,
            "QSTASH_URL": self._server.url,
            "RECEIVER": self._receiver.url,
            "PATH": f"{directory / 'bin'}:{tools.python.parent}:{os.environ['PATH']}",
            "NO_COLOR": "1",
            "NEXT_TELEMETRY_DISABLED": "1",
        }
        self._environment = {**clean_environment(), **self._fixed}

    def close(self):
        for process in self._background:
            # With its children: some commands only start the program.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(PATIENCE_SECONDS)
        code = self._server.stop()
        self._receiver.stop()
        if code != 0:
            raise Failure(f"the server ended with exit code {code}")

    def run(self, block: Block):
        """Runs a block; raises `Failure`."""
        self._count += 1
        if CODE[block.language] == "toml":
            return self._check_toml(block)
        if "file" in block.options:
            return self._save(block)
        if "background" in block.flags:
            return self._start(block)
        deadline = time.monotonic() + _patience(block)
        while True:
            try:
                return self._run_once(block)
            except Failure:
                if "eventually" not in block.flags or time.monotonic() > deadline:
                    raise

    def _save(self, block):
        path = self._directory / block.options["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")

    def _run_once(self, block):
        try:
            done = subprocess.run(
                self._command(block),
                cwd=self._directory,
                env={**self._environment, "DOCS_STATE": str(self._directory / "state")},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_patience(block),
            )
        except subprocess.TimeoutExpired as error:
            raise Failure(f"it took longer than {_patience(block)} s") from error
        printed = f"--- printed\n{done.stdout}--- to stderr\n{done.stderr}"
        if done.returncode != 0:
            raise Failure(f"exit code {done.returncode}\n{printed}")
        if block.expected:
            problem = match.mismatch(block.expected.text, block.expected.language, done.stdout)
            if problem:
                raise Failure(f"{problem}\n--- expected\n{block.expected.text}{printed}")
        elif '"error":' in done.stdout:
            raise Failure(f"an answer is an error, and the page does not say so\n{printed}")
        if CODE[block.language] == "bash":
            self._remember()

    def _command(self, block):
        if CODE[block.language] == "bash":
            return ["bash", "-euo", "pipefail", "-c", BASH + block.text]
        suffix, *interpreter = {
            "js": (".mjs", "node"),
            "ts": (".mts", "node", "--import", "tsx"),
            "python": (".py", str(self._tools.python)),
        }[block.language]
        script = self._directory / f"block-{self._count}{suffix}"
        script.write_text(block.text, encoding="utf-8")
        return [*interpreter, str(script)]

    def _remember(self):
        pairs = (self._directory / "state").read_text().split("\0")
        said = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        self._environment = {name: value for name, value in said.items() if name not in VOLATILE}
        self._environment.update(self._fixed)

    def _start(self, block):
        """Starts a program that the rest of the page needs, and waits until its port is open."""
        port = int(block.options["port"])
        if _is_open(port):
            raise Failure(f"port {port} is in use by another process")
        log = self._directory / f"background-{self._count}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                self._command(block) if block.language != "bash" else ["bash", "-c", f"exec {block.text}"],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._background.append(process)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if _is_open(port):
                return
        raise Failure(f"nothing listens on port {port}\n{log.read_text()}")

    def _check_toml(self, block):
        """A configuration must be one that the server accepts."""
        path = self._directory / block.options.get("file", f"block-{self._count}.toml")
        path.write_text(block.text, encoding="utf-8")
        command = [self._tools.binary, "serve", "--print-config", "--config", path]
        done = subprocess.run(
            command, env=clean_environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
        if done.returncode != 0:
            raise Failure(f"the server refuses it: {done.stderr}")


def _patience(block):
    return int(block.options.get("seconds", PATIENCE_SECONDS))


def _is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
