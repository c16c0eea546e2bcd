"""The text of a page without its code blocks: statements, and text in backticks."""

import re

FENCE = re.compile(r"^```.*?^```", re.M | re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
SENTENCE = re.compile(r"(?<=[.?!:])(?:\*\*)?\s+(?=[A-Z*`\[])")


def statements(text):
    """Sentences, and rows of tables as one statement each, with single spaces."""
    return [statement for block in _blocks(text) for statement in _sentences(block)]


def items(text, heading):
    """The first sentence of every list item under a heading, without the marks of bold text."""
    sections = _sections(text, re.escape(heading))
    found = [block for section in sections for block in _blocks(section) if block.startswith("- ")]
    return [_sentences(item.removeprefix("- "))[0].replace("**", "") for item in found]


def rows(text, heading):
    """The cells of every table row under the headings that match."""
    tables = [row for section in _sections(text, heading) for row in re.findall(r"^\|.*\|$", section, re.M)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in tables]


def code(text):
    """Text in backticks, outside code blocks."""
    return re.findall(r"`([^`\n]+)`", _without_code(text))


def shell(text):
    """The lines of the page's shell blocks; a line that ends with a backslash continues."""
    blocks = re.findall(r"^```(?:bash|sh)\b[^\n]*\n(.*?)^```", text, re.M | re.S)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def _sections(text, heading):
    return re.findall(rf"^#+ {heading}$(.*?)(?=^#+ |\Z)", _without_code(text), re.M | re.S)


def _without_code(text):
    return COMMENT.sub("", FENCE.sub("", text))


def _blocks(text):
    """Paragraphs, list items and table rows, each on one line."""
    blocks = [""]
    for line in _without_code(text).splitlines():
        if not line.strip() or re.match(r"\s*(- |\d+\. |\||#)", line):
            blocks.append("")
        blocks[-1] = f"{blocks[-1]} {line.strip()}".strip()
        if line.startswith(("|", "#")):
            blocks.append("")
    return [block for block in blocks if block]


def _sentences(block):
    return [block] if block.startswith("|") else [part.strip() for part in SENTENCE.split(block)]
