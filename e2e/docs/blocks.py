"""Fenced code blocks of a Markdown page, in order, with their expected output.

A fence's info string is a language, then flags and `name=value` options:

    no-run      is not executed; an HTML comment before it gives the reason: <!-- no-run: reason -->
    eventually  is repeated until it prints the expected output
    background  keeps running until the end of the page; it is ready when `port=N` is open
    file=NAME   is saved under this name in the page's directory (and checked, if it is toml), not executed
    seconds=N   may take longer than others
    tutorial=T  is executed by e2e/tutorials in an empty directory, and not by e2e/docs
    terminal=N  the terminal of a tutorial that the block belongs to; `server` is the one of `posthaste dev`
    needs=A,B   programs that the tutorial needs, see e2e/tutorials/needs.py

A block of code may be followed by an `output` or `json` block with its expected output. An `output` block of a tutorial names
the terminal that must show it. A file of a tutorial may be in any language.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

CODE = {"bash": "bash", "sh": "bash", "js": "js", "ts": "ts", "python": "python", "toml": "toml"}
EXPECTATIONS = ("output", "json")
FLAGS = {"no-run", "eventually", "background"}
OPTIONS = {"port", "file", "seconds", "tutorial", "terminal", "needs"}
FENCE = re.compile(r"^```\s*(\S+)?\s*(.*)$")
REASON = re.compile(r"^<!--\s*no-run:\s*(\S.*?)\s*-->$")


class PageError(Exception):
    """The page itself is wrong."""


@dataclass
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    flags: set = field(default_factory=set)
    options: dict = field(default_factory=dict)
    reason: str | None = None
    expected: "Block | None" = None

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def pages(root: Path) -> list[Path]:
    """The pages with blocks that are executed."""
    docs = root / "docs"
    return [root / "README.md", *sorted(docs.glob("*.md")), *sorted((docs / "quickstarts").glob("*.md"))]


def read(page: Path) -> list[Block]:
    """The code blocks of a page. Fences in other languages are only shown."""
    blocks: list[Block] = []
    candidate = None  # the block that an expectation would belong to
    before = ""  # the last line that was not empty
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), start=1))
    for number, line in lines:
        opening = FENCE.match(line)
        if not opening:
            if line.strip():
                before = line.strip()
                candidate = None
            continue
        block = Block(page, number, opening[1] or "", _body(page, number, lines))
        _read_info(block, opening[2])
        if "tutorial" in block.options and (block.language == "output" or "file" in block.options):
            blocks.append(block)
        elif block.language in EXPECTATIONS:
            if candidate is not None:
                candidate.expected = block
            elif block.language == "output":
                raise PageError(f"{block.place}: this output belongs to no code block")
        elif block.language in CODE:
            reason = REASON.match(before)
            block.reason = reason[1] if reason else None
            blocks.append(block)
        candidate = block if block.language in CODE else None
        before = ""
    return blocks


def _body(page, opened_at, lines):
    body = []
    for _, line in lines:
        if line.startswith("```"):
            return "\n".join(body) + "\n"
        body.append(line)
    raise PageError(f"{page}:{opened_at}: this fence is never closed")


def _read_info(block, info):
    for word in info.split():
        name, equals, value = word.partition("=")
        if equals and name in OPTIONS:
            block.options[name] = value
        elif word in FLAGS:
            block.flags.add(word)
        else:
            raise PageError(f"{block.place}: unknown word {word!r} after the fence's language")


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    text = page.read_text(encoding="utf-8")
    section = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    if not section:
        raise PageError(f"{page}: there is no heading {heading!r}")
    table = [line for line in section[1].splitlines() if line.startswith("|")]
    # A pipe inside of code is written \| in a table.
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
    if len(cells) < 3:
        raise PageError(f"{page}: there is no table under {heading!r}")
    return cells[2:]


def code(cell: str) -> list[str]:
    """The text in backticks in a cell."""
    return re.findall(r"`([^`]+)`", cell)
