"""The features that the pages say do not exist, each with a probe that finds the feature if it does.

A page may say that something is missing only if ABSENCES has the claim. When the feature arrives, the probe finds it, and
the page has to change. Claims are found by their words (SAYS_ABSENT), in two lists, and in tables of differences.
"""

import re
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import prose
from server import DEV_USER, PATIENCE_SECONDS

#: Sentences that claim an absence.
SAYS_ABSENT = re.compile(
    r"\b(Posthaste|it|SDK|server|console) (has|keeps) no\b|\bPosthaste (does not (have|support)|lacks)\b"
    # Not the SDKs of others, and not a link to the list.
    r"|\b[Tt]here (is|are|has been) no (?!official SDK)|\bnot (implemented|supported)\b(?! yet\]\()"
)
#: Lists in which every item claims an absence.
LISTS = {"docs/README.md": "Not implemented yet", "docs/compare.md": "Missing in Posthaste"}
#: Headings of tables in which the last cell claims an absence if it begins with one of these words.
TABLES = r"[^\n]*[Dd]ifferen[^\n]*"
CELL_SAYS_ABSENT = re.compile(r"no\b|none\b|not\b|your own\b|one server\b|one region\b")


@dataclass
class World:
    """The server and the source tree, as probes see them."""

    root: Path
    python: Path
    url: str
    settings: set
    endpoints: set


def no_setting(*words):
    """No flag of `serve` has one of the words in its name."""
    return lambda world: [f"--{flag}" for flag in sorted(world.settings) if any(word in flag for word in words)]


def no_endpoint(*words):
    return lambda world: [path for path in sorted(world.endpoints) if any(word in path.lower() for word in words)]


def no_file(*patterns):
    """Nothing in the source tree has such a path."""
    return lambda world: [
        path.relative_to(world.root).as_posix() for pattern in patterns for path in world.root.glob(pattern)
    ]


def no_text(file, pattern):
    return lambda world: re.findall(pattern, (world.root / file).read_text(encoding="utf-8"), re.M)


def answers(status, method, path):
    """The running server rejects the request."""

    def probe(world):
        headers = {"Authorization": f"Bearer {DEV_USER['QSTASH_TOKEN']}"}
        request = urllib.request.Request(world.url + path, b"x" if method == "POST" else None, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                got = answer.status
        except urllib.error.HTTPError as error:
            got = error.code
        return [] if got == status else [f"{method} {path} answers {got}, not {status}"]

    return probe


def python_lacks(module, name):
    """A package of the Python SDKs has no such attribute, which may have dots."""

    def probe(world):
        script = f"import functools, {module}\nprint(functools.reduce(getattr, {name.split('.')}, {module}))"
        run = subprocess.run([world.python, "-c", script], capture_output=True, text=True)
        if "AttributeError" in run.stderr:
            return []
        return [f"{module}.{name}: {(run.stdout or run.stderr).strip()}"]

    return probe


def unchecked(reason):
    """The repository cannot verify it. For few claims."""
    assert reason
    return lambda world: []


ONE_NODE = [
    no_setting("postgres", "database", "cluster", "peer"),
    no_file("crates/*postgres*", "crates/store/src/postgres*"),
]
NO_ALERTS = [no_setting("alert"), no_endpoint("alert")]
NO_EMAIL = [answers(400, "POST", "/v2/publish/api/email")]
NO_RELEASE = [no_text("CHANGELOG.md", r"^## \[?v?\d.*")]
NO_PACKAGES = [
    no_file("Dockerfile", "*/Dockerfile", "compose*.y*ml", "install.sh", "packaging", "debian"),
    no_file(".github/workflows/release*"),
]

#: Page, words of the claim (of a table row: of its first and last cell), probes.
ABSENCES = [
    ("docs/README.md", "PostgreSQL as a store, and therefore more than one node", ONE_NODE),
    ("docs/README.md", "Alerts", NO_ALERTS),
    ("docs/README.md", "Releases, prebuilt binaries, packages and container images", NO_RELEASE + NO_PACKAGES),
    ("CHANGELOG.md", "There has been no release yet", NO_RELEASE),
    ("docs/compare.md", "More than one node", ONE_NODE),
    ("docs/compare.md", "A release", NO_RELEASE),
    ("docs/compare.md", "Prebuilt binaries, packages and container images", NO_PACKAGES),
    ("docs/compare.md", "Alerts", NO_ALERTS),
    (
        "docs/compare.md",
        "User accounts, roles and single sign-on",
        [no_setting("oidc", "saml", "sso", "role", "user"), no_endpoint("login", "users", "roles")],
    ),
    ("docs/compare.md", "A portal for your customers", [no_endpoint("portal")]),
    (
        "docs/compare.md",
        "Transformations of messages on the way, and receivers other than HTTP",
        [no_setting("transform"), no_endpoint("transform"), answers(400, "POST", "/v2/publish/amqp://example.com/queue")],
    ),
    ("docs/compare.md", "A hosted service", [unchecked("a service would not be in the repository")]),
    ("docs/compare.md", "no event bus, no debouncing", [no_setting("debounce", "event"), no_endpoint("debounce")]),
    ("docs/compare.md", "keeps no state for your code", [no_setting("replica"), no_endpoint("state", "/kv")]),
    ("docs/compare.md", "it has no workers", [no_setting("worker"), no_endpoint("worker", "poll")]),
    (
        "docs/dlq.md",
        "The Python SDK has no method for this",
        [python_lacks("qstash.dlq", f"DlqApi.{name}") for name in ("retry", "retry_many")],
    ),
    ("docs/llm.md", "There is no `api/email`", NO_EMAIL),
    ("docs/migrating.md", "[several nodes]", ONE_NODE + NO_EMAIL),
    ("docs/migrating.md", "several regions | one server", ONE_NODE),
    ("docs/migrating.md", "TLS | your own proxy", [no_setting("tls", "certificate")]),
    ("docs/migrating.md", "alerts | your own", NO_ALERTS),
    ("docs/migrating.md", "`/v1/endpoints`", [answers(404, "GET", "/v1/endpoints"), answers(405, "POST", "/v1/topics")]),
    (
        "docs/migrating.md",
        "`/v1/messages` (list), `/v1/messages/{id}/tasks` and `/logs`, `/v1/tasks`, `/v1/quota`",
        [
            answers(404, "GET", f"/v1/{path}")
            for path in ("messages", "messages/msg_1/tasks", "messages/msg_1/logs", "tasks", "quota")
        ],
    ),
    ("docs/workflows.md", "The Python SDK has no client for workflows", [python_lacks("upstash_workflow", "Client")]),
    ("docs/workflows.md", "several regions | one server", ONE_NODE),
]


def claims(page, text):
    """The claims of absence of a page."""
    sentences = [statement for statement in prose.statements(text) if not statement.startswith("|")]
    found = [sentence for sentence in sentences if SAYS_ABSENT.search(sentence)]
    if page in LISTS:
        found += prose.items(text, LISTS[page])
    found += [f"{row[0]} | {row[-1]}" for row in prose.rows(text, TABLES) if CELL_SAYS_ABSENT.match(row[-1])]
    return found


def problems(pages, world, listed=None):
    """`pages` are the texts by path. Returns claims that are not listed, listed ones that are not made, and wrong ones."""
    listed = ABSENCES if listed is None else listed
    claimed = [(page, claim) for page, text in pages.items() for claim in claims(page, text)]
    found = [
        f"{page}: e2e/docs/absences.py does not check the claim: {claim}"
        for page, claim in claimed
        if not any(page == where and words in claim for where, words, _ in listed)
    ]
    for page, words, probes in listed:
        if not any(page == where and words in claim for where, claim in claimed):
            found.append(f"{page} does not claim this, remove it from e2e/docs/absences.py: {words}")
        found += [f"{page} says “{words}”, but there is {thing}" for probe in probes for thing in probe(world)]
    return found
