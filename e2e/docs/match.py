"""Compares the output of a block with its page. `…` stands for anything."""

import json
import re

ANY = "…"


def mismatch(expected: str, language: str, printed: str) -> str | None:
    """Why `printed` differs from the expected output; `None` if it matches."""
    if language == "json":
        return _json_mismatch(expected, printed)
    return None if _text_pattern(expected).fullmatch(printed.strip()) else "the output differs"


def is_shown(expected: str, printed: str) -> bool:
    """Whether a terminal has printed these lines."""
    return _text_pattern(expected).search(printed) is not None


def parse(expected: str):
    """JSON in which a bare … may stand for a value, the rest of a list or the rest of an object."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', expected)
    quoted = "".join(part if index % 2 else part.replace(ANY, f'"{ANY}"') for index, part in enumerate(parts))
    return json.loads(re.sub(rf'([{{,]\s*)"{ANY}"(\s*\}})', rf'\1"{ANY}":"{ANY}"\2', quoted))


def _text_pattern(expected):
    lines = []
    for line in expected.strip().splitlines():
        if line.strip() == ANY:
            lines.append(r"(?:.*\n)*?.*")
        else:
            lines.append(".*?".join(re.escape(part) for part in line.rstrip().split(ANY)))
    return re.compile(r"[ \t]*\n".join(lines))


def _json_mismatch(expected, printed):
    try:
        wanted = parse(expected)
    except ValueError as error:
        return f"the page's JSON is wrong: {error}"
    try:
        found = json.loads(printed)
    except ValueError as error:
        return f"the output is not JSON: {error}"
    return _difference(wanted, found, "the answer")


def _difference(wanted, found, where):
    if wanted == ANY:
        return None
    if isinstance(wanted, dict) and isinstance(found, dict):
        return _object_difference(wanted, found, where)
    if isinstance(wanted, list) and isinstance(found, list):
        return _list_difference(wanted, found, where)
    if isinstance(wanted, str) and isinstance(found, str) and ANY in wanted:
        pattern = ".*".join(re.escape(part) for part in wanted.split(ANY))
        return None if re.fullmatch(pattern, found, re.S) else f"{where} is {found!r}, not {wanted!r}"
    same = type(wanted) is type(found) and wanted == found
    return None if same else f"{where} is {found!r}, not {wanted!r}"


def _object_difference(wanted, found, where):
    for name, value in wanted.items():
        if name == ANY:
            continue
        if name not in found:
            return f"{where} has no {name}"
        difference = _difference(value, found[name], f"{where}.{name}")
        if difference:
            return difference
    unknown = sorted(found.keys() - wanted.keys())
    return f"{where} also has {', '.join(unknown)}" if unknown and ANY not in wanted else None


def _list_difference(wanted, found, where):
    open_ended = bool(wanted) and wanted[-1] == ANY
    wanted = wanted[:-1] if open_ended else wanted
    if len(found) < len(wanted) or (len(found) > len(wanted) and not open_ended):
        return f"{where} has {len(found)} entries, not {len(wanted)}"
    for index, (one, other) in enumerate(zip(wanted, found)):
        difference = _difference(one, other, f"{where}[{index}]")
        if difference:
            return difference
    return None
