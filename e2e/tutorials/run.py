#!/usr/bin/env python3
"""Follows the tutorials of README.md and docs/ as a newcomer does: in an empty directory, with exactly their commands.

    e2e/tutorials/run.py [BINARY] [--only TUTORIAL]

BINARY is target/debug/posthaste unless given. A tutorial is made of the fenced blocks that have `tutorial=NAME`; e2e/docs/blocks.py
explains the other words after a fence. Packages come from the registries of npm, pip and cargo. Nothing is left behind but
target/tutorials, see needs.py.
"""

import argparse
import io
import shutil
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "e2e/docs"))

import blocks
from terminal import Failure
from tutorial import Tutorial


def main():
    arguments = read_arguments()
    # Closes the terminals if the runner is stopped, because each has its own process group.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    refuse_missing(arguments.binary)
    failed = [] if passes_self_test() else ["self_test.py"]
    tutorials = find_tutorials(blocks.pages(ROOT))
    if arguments.only and arguments.only not in tutorials:
        sys.exit(f"there is no tutorial {arguments.only}; there are: {', '.join(tutorials)}")
    for name, listed in tutorials.items():
        if arguments.only in (None, name) and not follow(name, listed, arguments.binary.resolve()):
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all tutorials passed")
    return 1 if failed else 0


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="?", type=Path, default=ROOT / "target/debug/posthaste")
    parser.add_argument("--only", metavar="TUTORIAL", help="one tutorial, by its name")
    return parser.parse_args()


def refuse_missing(binary):
    for program in ("bash", "curl", "jq", "node", "npm", "python3"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is not installed: the tutorials use it")
    if not binary.exists():
        sys.exit(f"{binary} does not exist: build it with `cargo build`, or name another one")


def passes_self_test():
    """A runner that lets everything pass is worse than none."""
    report = io.StringIO()
    tests = unittest.defaultTestLoader.loadTestsFromName("self_test")
    passed = unittest.TextTestRunner(stream=report).run(tests).wasSuccessful()
    if not passed:
        print(f"FAILED self_test.py\n{report.getvalue()}", flush=True)
    return passed


def find_tutorials(pages):
    """The blocks of each tutorial, by its name, in the order of the text."""
    tutorials: dict[str, list[blocks.Block]] = {}
    for page in pages:
        for block in blocks.read(page):
            if "tutorial" in block.options:
                tutorials.setdefault(block.options["tutorial"], []).append(block)
    return tutorials


def follow(name, listed, binary):
    """Follows a tutorial to its end, or to the first block that fails."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="posthaste-tutorial-", ignore_cleanup_errors=True) as directory:
        tutorial, at = None, name
        try:
            tutorial = Tutorial(Path(directory), binary, listed, in_clone=listed[0].page == ROOT / "README.md")
            tutorial.begin()
            for block in listed:
                at = f"{block.page.relative_to(ROOT)}:{block.line}\n{block.text}"
                tutorial.follow(block)
        except Failure as failure:
            print(f"FAILED {at}{failure}", flush=True)
            return False
        finally:
            if tutorial is not None:
                tutorial.close()
    print(f"{name}: {len(listed)} blocks in {time.monotonic() - started:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
