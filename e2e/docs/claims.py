"""Names on the pages must exist: commands, flags, endpoints, metrics, settings and versions of SDKs.

checks.py compares the whole reference tables. This file checks every other mention. A function returns its problems, as
a list of texts; `pages` are the texts by path.
"""

import json
import re

import prose

#: Not the package of that name: `cargo test -p posthaste --test it`.
COMMAND = re.compile(r"(?:^|(?<!-p)\s|[/(])posthaste ((?:--[a-z]|[a-z])[a-z-]*)((?:\s+\S+)*)")
FLAG = re.compile(r"--[a-z][a-z-]+")
#: Flags of other programs that a page names alone.
FOREIGN_FLAGS = {
    ("docs/benchmarks.md", "--stored"),
    ("docs/quickstarts/rails.md", "--local"),
    ("docs/reliability/torture.md", "--out"),
}
#: A path of this server, not the rest of a URL of another one.
PATH = re.compile(r"(/v[12]/[^\s\"'`)\]|,;?&<]+|/llm/v1/[a-z/]+)")
OTHER_URL = re.compile(r"https?://(?!127\.0\.0\.1|localhost|\$)[^\s\"'`)]+")
#: The last parameter of these may have slashes.
DEEP = ("/v2/publish/", "/v1/publish/", "/v2/enqueue/", "/v2/trigger/", "/v2/schedules/{destination}")
METRIC = re.compile(r"\bposthaste_[a-z_]+\b")
SETTING = re.compile(r"\[`([a-z_]+)(?: = [^`]*)?`\]\([^)]*configuration\.md#(?:settings|quotas)\)")
VERSION = re.compile(r"\b\d+\.\d+(?:\.\d+)?\b")


def commands(pages, help_of):
    """`posthaste SUBCOMMAND --flag` in backticks and in shell blocks, and `--flag` alone in backticks.

    `help_of` has the help of every subcommand by its name.
    """
    flags = {name: set(FLAG.findall(text)) for name, text in help_of.items()}
    problems = []
    for page, text in pages.items():
        for line in prose.code(text) + prose.shell(text):
            for name, rest in COMMAND.findall(_posthaste_alone(line)):
                if name.startswith("--"):
                    missing = {name} - {"--help", "--version"}
                elif name not in flags:
                    problems.append(f"{page}: there is no command posthaste {name}")
                    continue
                else:
                    missing = set(FLAG.findall(rest)) - flags[name]
                problems += [f"{page}: posthaste {name} has no {flag}" for flag in sorted(missing)]
        for line in prose.code(text):
            flag = FLAG.match(line)
            if flag and (page, flag[0]) not in FOREIGN_FLAGS and not any(flag[0] in known for known in flags.values()):
                problems.append(f"{page}: no command of posthaste has {flag[0]}")
    return problems


def _posthaste_alone(line):
    """The part of a line of shell that belongs to posthaste."""
    return re.split(r"[|&;>]|2>", line.partition(" #")[0])[0].replace("target/release/posthaste", "posthaste")


def endpoints(pages, document, absent):
    """Every path of the API that a page names, besides those in `absent`: claims of absence, as (page, claim)."""
    templates = [path.split("/")[1:] for path in document["paths"]]
    problems = []
    for page, text in pages.items():
        missing = {path for where, claim in absent if where == page for path in paths(claim)}
        for path in sorted(paths(OTHER_URL.sub("", text)) - missing):
            if not any(_matches(path, template) for template in templates):
                problems.append(f"{page}: there is no endpoint {path}")
    return problems


def paths(text):
    return {path.rstrip(".:…\\") for path in PATH.findall(text)}


def _matches(path, template):
    """Whether it is the path of an endpoint, or, with a slash at the end, the start of one."""
    is_start = path.endswith("/")
    parts = path.strip("/").split("/")
    if f"/{'/'.join(template)}".startswith(DEEP):
        parts = parts[: len(template)]
    if len(parts) != len(template) and not (is_start and len(parts) < len(template)):
        return False
    return all(part == wanted or part.startswith("{") or wanted.startswith("{") for part, wanted in zip(parts, template))


def metrics(pages, listed):
    """Every metric that a page names; `listed` are those of the table, which is compared with `/metrics`."""
    problems = []
    for page, text in pages.items():
        named = {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRIC.findall(text)} - {"posthaste_kit"}
        problems += [f"{page}: there is no metric {name}" for name in sorted(named - listed)]
    return problems


def settings(pages, listed):
    """Every setting that a page links to; `listed` are the keys of the table, which is compared with `--help`."""
    mentions = [(page, name) for page, text in pages.items() for name in SETTING.findall(text)]
    return [f"{page}: there is no setting {name}" for page, name in mentions if name not in listed]


#: Page, where its versions are, and whose they are.
VERSIONS = [
    ("docs/migrating.md", r"the JavaScript SDK \(([^)]+)\), the Python SDK \(([^)]+)\)", ["@upstash/qstash", "qstash"]),
    ("docs/logs.md", r"\(Version ([\d.]+) of the Python package", ["qstash"]),
    ("docs/workflows.md", r"^\| `@upstash/workflow` \| (.+) \|$", ["@upstash/workflow"]),
    ("docs/workflows.md", r"^\| `upstash-workflow` \| (.+) \|$", ["upstash-workflow"]),
    ("e2e/README.md", r"`@upstash/qstash` (.+?) for", ["@upstash/qstash"]),
    ("e2e/README.md", r"`qstash` ([\d.]+)", ["qstash"]),
    ("e2e/README.md", r"`@upstash/workflow` (.+?) in Express", ["@upstash/workflow"]),
    ("e2e/README.md", r"`upstash-workflow` ([\d.]+)", ["upstash-workflow"]),
]


def sdk_versions(pages, tested, places=VERSIONS):
    """The documented versions of the SDKs are exactly those of the lock files.

    `tested` has the versions by package.
    """
    problems = []
    for page, pattern, packages in places:
        found = re.search(pattern, pages[page], re.M | re.I)
        if not found:
            problems.append(f"{page}: names no versions of {packages[0]} where e2e/docs/claims.py looks for them")
            continue
        for said, package in zip(found.groups(), packages):
            named = VERSION.findall(said)
            for version in named:
                if not any(known == version or known.startswith(f"{version}.") for known in tested[package]):
                    problems.append(f"{page}: {package} {version} is not tested")
            for known in sorted(tested[package]):
                if not any(known == version or known.startswith(f"{version}.") for version in named):
                    problems.append(f"{page}: does not name {package} {known}, which is tested")
    return problems


def tested_versions(root):
    """The SDKs of the end-to-end tests, by package, from their lock files."""
    tested = {"@upstash/qstash": set(), "@upstash/workflow": set(), "qstash": set(), "upstash-workflow": set()}
    for lock in ("e2e/js/package-lock.json", "e2e/workflow/js/package-lock.json"):
        for path, package in json.loads((root / lock).read_text(encoding="utf-8"))["packages"].items():
            # Direct dependencies of the tests, under any name, but not indirect ones.
            name = package.get("name", path.removeprefix("node_modules/"))
            if path.count("node_modules/") == 1 and name in tested:
                tested[name].add(package["version"])
    for line in (root / "e2e/python/requirements.txt").read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("==")
        if name in tested:
            tested[name].add(version)
    return tested
