#!/usr/bin/env python3
"""Runs every example of README.md and docs/ but the tutorials, and checks their tables against the code.

    e2e/docs/run.py [BINARY] [--python PYTHON] [--only PAGE]

BINARY is target/debug/posthaste unless given. PYTHON is an interpreter that has the packages of
e2e/python/requirements.txt: this one unless given. Node finds its packages in e2e/workflow/js/node_modules. Nothing is
left behind.
"""

import argparse
import io
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path

sys.dont_write_bytecode = True

import blocks
import checks
from page import Failure, Page

ROOT = Path(__file__).resolve().parents[2]
#: Pages with other conventions.
FOREIGN = {"benchmarks.md", "style.md"}


@dataclass
class Tools:
    """The inputs of pages and checks."""

    binary: Path
    python: Path
    root: Path
    docs: Path
    node_modules: Path
    pages: list[Path]


class Score:
    """The results of all blocks and checks."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def ok(self):
        self.passed += 1

    def wrong(self, what, why):
        self.failed += 1
        print(f"FAILED {what}\n{_indented(why)}", flush=True)


def main():
    arguments = read_arguments()
    # Ends background programs if the runner is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    tools = Tools(
        binary=arguments.binary.resolve(),
        python=Path(arguments.python).absolute(),
        root=ROOT,
        docs=ROOT / "docs",
        node_modules=ROOT / "e2e/workflow/js/node_modules",
        pages=[page for page in blocks.pages(ROOT) if page.name not in FOREIGN],
    )
    refuse_missing(tools)
    score = Score()
    run_self_test(score)
    for page in tools.pages:
        if arguments.only in (None, str(page.relative_to(ROOT))):
            run_page(page, tools, score)
    if arguments.only is None:
        run_checks(tools, score)
    print(f"{score.skipped} blocks are marked no-run")
    print(f"{score.passed} passed, {score.failed} failed")
    return 1 if score.failed else 0


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="?", type=Path, default=ROOT / "target/debug/posthaste")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the qstash package")
    parser.add_argument("--only", metavar="PAGE", help="one page, such as docs/publish.md")
    return parser.parse_args()


def refuse_missing(tools):
    for program in ("bash", "curl", "jq", "node", "sqlite3"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is not installed: the examples use it")
    if not tools.binary.exists():
        sys.exit(f"{tools.binary} does not exist: build it with `cargo build`, or name another one")
    for package in ("@upstash/qstash", "@upstash/workflow", "hono", "next"):
        if not (tools.node_modules / package).exists():
            sys.exit(f"{package} is not installed: run `npm ci` in e2e/workflow/js")
    for package in ("qstash", "upstash_workflow"):
        if subprocess.run([tools.python, "-c", f"import {package}"], capture_output=True).returncode != 0:
            sys.exit(f"{tools.python} has no {package} package: install it, or name another interpreter with --python")


def run_self_test(score):
    """A runner that lets everything pass is worse than none."""
    report = io.StringIO()
    tests = unittest.defaultTestLoader.loadTestsFromName("self_test")
    if unittest.TextTestRunner(stream=report).run(tests).wasSuccessful():
        score.ok()
    else:
        score.wrong("self_test.py", report.getvalue())


def run_page(path, tools, score):
    name = path.relative_to(ROOT)
    try:
        listed = blocks.read(path)
    except blocks.PageError as error:
        return score.wrong(name, str(error))
    listed = [block for block in listed if "tutorial" not in block.options]
    for block in (block for block in listed if "no-run" in block.flags):
        score.skipped += 1
        if not block.reason:
            score.wrong(f"{name}:{block.line}", "no-run needs a line <!-- no-run: reason --> before it")
    runnable = [block for block in listed if "no-run" not in block.flags]
    if not runnable:
        return None
    with tempfile.TemporaryDirectory(prefix="posthaste-docs-") as directory:
        try:
            page = Page(Path(directory), tools)
        except (OSError, RuntimeError) as error:
            return score.wrong(name, f"it cannot be set up: {error}")
        before = score.failed
        run_blocks(page, name, runnable, score)
        if score.failed == before:
            print(f"{name}: {len(runnable)} blocks", flush=True)
    return None


def run_blocks(page, name, runnable, score):
    try:
        for block in runnable:
            try:
                page.run(block)
                score.ok()
            except Failure as failure:
                score.wrong(f"{name}:{block.line} ({block.language})", f"{block.text}{failure}")
    finally:
        try:
            page.close()
        except Failure as failure:
            score.wrong(name, str(failure))


def run_checks(tools, score):
    with tempfile.TemporaryDirectory(prefix="posthaste-docs-") as directory:
        for name, problems in checks.run(tools, Path(directory)):
            if problems:
                score.wrong(name, "\n".join(problems))
            else:
                score.ok()
                print(f"check: {name}", flush=True)


def _indented(text):
    return "\n".join(f"    {line}" for line in text.splitlines())


if __name__ == "__main__":
    sys.exit(main())
