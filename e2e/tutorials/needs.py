"""Provides the programs that some tutorials need: `needs=A,B` after a fence.

    node-22.12  Node.js, at least this version. If the machine has an older one, npm provides a newer one
    clone       a clone of Posthaste in the directory where the tutorial starts
    cargo       any other word is a program of the machine

Downloads of Node.js and compiled crates are kept in target/tutorials for the next run.
"""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from blocks import Block

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "target/tutorials"
#: The Node.js that npm provides, and the npm that belongs to it.
NODE_PACKAGES = ("node-{system}-{processor}@22", "npm@10")
NODE_VERSION = re.compile(r"node-(\d+)\.(\d+)")
#: How long the installation of Node.js may take.
INSTALL_SECONDS = 300
#: Debug information would take half of the space and a quarter of the time.
CARGO = {"CARGO_TARGET_DIR": str(KEPT / "cargo"), "CARGO_INCREMENTAL": "0", "CARGO_PROFILE_DEV_DEBUG": "0"}


class Missing(Exception):
    """The machine lacks a program."""


def of(listed: list[Block]) -> set[str]:
    """The needs of a tutorial."""
    return {need for block in listed for need in block.options.get("needs", "").split(",") if need}


def provide(needs: set[str], path: str, start: Path) -> tuple[str, dict[str, str]]:
    """The search path and further variables for a tutorial that starts in this directory; raises `Missing`."""
    variables = {}
    for need in sorted(needs):
        if version := NODE_VERSION.fullmatch(need):
            path = _path_with_node((int(version[1]), int(version[2])), path)
        elif need == "clone":
            (start / "posthaste").symlink_to(ROOT)
        elif shutil.which(need, path=path) is None:
            raise Missing(f"{need} is not installed")
        if need == "cargo":
            variables |= CARGO
    return path, variables


def forget(needs: set[str], start: Path):
    """Removes compiled crates in the tutorial's own directory, because no other run can use them."""
    if "cargo" not in needs:
        return
    for manifest in start.glob("*/Cargo.toml"):
        lock = manifest.with_name("Cargo.lock")
        if not manifest.parent.is_symlink() and lock.exists():
            packages = [word for name in local_packages(lock.read_text()) for word in ("--package", name)]
            command = ["cargo", "clean", "--quiet", "--offline", "--manifest-path", manifest, *packages]
            if subprocess.run(command, env={**os.environ, **CARGO}).returncode != 0:
                print(f"{CARGO['CARGO_TARGET_DIR']} keeps what was compiled for this tutorial", flush=True)


def local_packages(lock: str) -> list[str]:
    """The packages of a Cargo.lock that do not come from a registry."""
    packages = lock.split("[[package]]")[1:]
    return [re.search(r'^name = "(.+)"$', text, re.M)[1] for text in packages if "\nsource = " not in text]


def _path_with_node(wanted, path):
    if _node_version(path) >= wanted:
        return path
    kept = KEPT / "node"
    packages = [package.format(system=_system(), processor=_processor()) for package in NODE_PACKAGES]
    newer = f"{kept / 'node_modules' / packages[0].partition('@')[0] / 'bin'}:{kept / 'node_modules/.bin'}:{path}"
    if _node_version(newer) < wanted:
        kept.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--prefix", kept, "--no-save", "--no-audit", "--no-fund", "--loglevel=error", *packages]
        try:
            subprocess.run(command, check=True, timeout=INSTALL_SECONDS, stdout=subprocess.DEVNULL)
        except (subprocess.SubprocessError, OSError) as error:
            raise Missing(f"Node.js {wanted[0]}.{wanted[1]} cannot be installed: {error}") from error
    if _node_version(newer) < wanted:
        raise Missing(f"Node.js {wanted[0]}.{wanted[1]} is needed, and npm provides {packages[0]} at most")
    return newer


def _node_version(path):
    node = shutil.which("node", path=path)
    if node is None:
        return (0, 0)
    printed = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor, _ = printed.strip().removeprefix("v").split(".", 2)
    return (int(major), int(minor))


def _system():
    return platform.system().lower()


def _processor():
    return {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
