"""Compares the tables of the pages with the truth: the source, `--help`, `/metrics` and a real delivery.

Every check returns its problems, as a list of texts.
"""

import json
import math
import re
import subprocess
import time

import absences
import blocks
import claims
from receiver import Receiver
from server import DEV_USER, PATIENCE_SECONDS, Server



def run(tools, directory):
    """All checks, as (name, problems)."""
    server_directory = directory / "checks"
    server_directory.mkdir()
    receiver = Receiver()
    server = Server(tools.binary, server_directory, "--data-dir", "data")
    pages = texts(tools.root)
    listed = [
        ("configuration.md names every setting", lambda: settings(tools)),
        ("the example posthaste.toml has every setting", lambda: example_settings(tools)),
        ("serve starts with the example posthaste.toml", lambda: example_starts(tools, directory)),
        ("limits.md names every bound", lambda: limits(tools)),
        ("api.md names every endpoint", lambda: endpoints(tools, server)),
        ("signatures.md names every header of a delivery", lambda: delivery_headers(tools, server, receiver)),
        ("retries.md states the real waits", lambda: retry_delays(tools, server, receiver)),
        # After the deliveries: a metric with a label appears when it has counted something.
        ("operations.md names every metric", lambda: metrics(tools, server)),
        ("commands and flags exist", lambda: claims.commands(pages, helps(tools))),
        ("endpoints exist", lambda: claims.endpoints(pages, openapi(server), ABSENT)),
        ("metrics exist", lambda: claims.metrics(pages, listed_metrics(tools))),
        ("settings exist", lambda: claims.settings(pages, listed_settings(tools))),
        ("the SDKs have the tested versions", lambda: claims.sdk_versions(pages, claims.tested_versions(tools.root))),
        ("the features that are said to be missing are missing", lambda: absent_features(pages, tools, server)),
    ]
    try:
        for name, check in listed:
            try:
                yield name, check()
            except Exception as error:  # the other checks still count
                yield name, [f"the check itself failed: {error!r}"]
    finally:
        server.stop()
        receiver.stop()


#: The claims of absence, as (page, claim).
ABSENT = [(page, claim) for page, claim, _ in absences.ABSENCES]


def differences(what, documented, real):
    missing = [f"{what} {name} is missing" for name in sorted(real - documented)]
    return missing + [f"{what} {name} does not exist" for name in sorted(documented - real)]


def texts(root):
    """Every page that makes claims, by its path. Decisions are history, and the style guide quotes mistakes."""
    pages = [root / name for name in ("README.md", "CHANGELOG.md", "crates/kit/README.md", "e2e/README.md")]
    docs = sorted((root / "docs").rglob("*.md"))
    pages += [page for page in docs if page.name != "style.md" and page.parent.name != "decisions"]
    return {page.relative_to(root).as_posix(): page.read_text(encoding="utf-8") for page in pages}


def help_of(tools, *command):
    return subprocess.run([tools.binary, *command, "--help"], capture_output=True, text=True, check=True).stdout


def helps(tools):
    """The help of every subcommand."""
    names = re.search(r"^Commands:\n(.*?)\n\n", help_of(tools), re.M | re.S)[1]
    return {name: help_of(tools, name) for name in re.findall(r"^  ([a-z-]+)  ", names, re.M) if name != "help"}


def openapi(server):
    return json.loads(server.get("/openapi.json"))


def absent_features(pages, tools, server):
    flags = {flag.removeprefix("--") for flag in claims.FLAG.findall(help_of(tools, "serve"))}
    world = absences.World(tools.root, tools.python, server.url, flags, set(openapi(server)["paths"]))
    return absences.problems(pages, world)


def settings(tools):
    """Flag, variable and default of `serve --help`; the TOML key is the flag's name with underscores."""
    text = help_of(tools, "serve")
    real = {}
    for entry in re.split(r"^\s+(?=(?:-\w, )?--[a-z])", text, flags=re.M)[1:]:
        flag = re.match(r"(?:-\w, )?--([a-z-]+)", entry)[1]
        variable = re.search(r"\[env: (\w+)", entry)
        default = re.search(r"\[default:\s+([^\]]+)\]", entry)
        # A long line of the help is wrapped.
        real[flag] = (variable[1] if variable else "", " ".join(default[1].split()) if default else "")
    real.pop("help")
    problems, documented = [], set()
    for flag, variable, key, default, _ in blocks.rows(tools.docs / "configuration.md", "Settings"):
        name = "".join(blocks.code(flag)).removeprefix("--")
        documented.add(name)
        in_file = name not in ("config", "print-config", "discard-damaged-journal")
        said = ("".join(blocks.code(variable)), default.replace("`", ""))
        if name in real and said != real[name]:
            problems.append(f"--{name}: the page says {said}, --help says {real[name]}")
        if "".join(blocks.code(key)) != (name.replace("-", "_") if in_file else ""):
            problems.append(f"--{name}: wrong TOML key {key}")
    return problems + differences("flag", documented, set(real))


def example(tools):
    page = blocks.read(tools.docs / "configuration.md")
    return next(block.text for block in page if block.options.get("file") == "posthaste.toml")


def listed_settings(tools):
    """The TOML keys of the table."""
    return {"".join(blocks.code(row[2])) for row in blocks.rows(tools.docs / "configuration.md", "Settings")} - {""}


def example_settings(tools):
    keys = listed_settings(tools)
    single_tenant = {"token", "read_only_token", "current_signing_key", "next_signing_key"}
    shown = set(re.findall(r"^#? ?(\w+) = ", example(tools), re.M))
    return [f"{key} is not in the example" for key in sorted(keys - single_tenant - shown)]


def example_starts(tools, directory):
    config = directory / "posthaste.toml"
    config.write_text(example(tools), encoding="utf-8")
    try:
        server = Server(tools.binary, directory, "--config", config, "--data-dir", directory / "example", mode="serve")
    except RuntimeError as error:
        return [str(error)]
    health = json.loads(server.get("/health"))
    code = server.stop()
    return [] if health == {"status": "ok"} and code == 0 else [f"/health says {health}, exit code {code}"]


#: Where bounds are defined; in limits.rs only public ones count.
BOUNDS = {
    "engine/src/limits.rs": r"pub const",
    "wire/src/echo.rs": r"pub const",
    "server/src/main.rs": r"const",
    "server/src/http.rs": r"(?:pub(?:\(crate\))? )?const",
    "server/src/api/allowance.rs": r"const",
    "server/src/console/guard.rs": r"const",
    "server/src/console/session.rs": r"const",
    "server/src/console/mod.rs": r"const",
    "server/src/api/body.rs": r"(?:pub(?:\(crate\))? )?const",
    "server/src/api/cron.rs": r"const",
    "server/src/api/duplicates.rs": r"const",
    "server/src/api/error.rs": r"const",
    "server/src/api/event_stream.rs": r"const",
    "server/src/api/llm.rs": r"const",
    "server/src/api/pages.rs": r"const",
    "server/src/api/response.rs": r"(?:pub\(super\) )?const",
    "server/src/api/stats.rs": r"const",
    "server/src/api/token_guesses.rs": r"const",
    "server/src/core/admission.rs": r"pub const",
    "server/src/core/attempts.rs": r"const(?= THROTTLE)",
    "node/src/bounds.rs": r"const(?= FIRED)",
    "node/src/firing.rs": r"const",
    "node/src/round.rs": r"const",
    "server/src/core/stats.rs": r"const",
    "server/src/core/tail.rs": r"const",
    "delivery/src/answer_room.rs": r"pub const",
    "delivery/src/probes.rs": r"const",
    "delivery/src/resolve.rs": r"pub const",
    "delivery/src/target.rs": r"const",
    "server/src/metrics.rs": r"const",
    "server/src/pulse.rs": r"pub const",
    "server/src/reads.rs": r"pub const",
    "server/src/receiver/mod.rs": r"const",
    "server/src/receiver/script.rs": r"(?:pub\(super\) )?const",
    "server/src/sealed.rs": r"const",
    "server/src/server.rs": r"const",
    "server/src/sse.rs": r"(?:pub\(crate\) )?const",
    # The size of a file of the journal and the pace of its thread limit nothing.
    "store/src/journal/mod.rs": r"(?:pub )?const(?! SEGMENT_BYTES| APPLY_AFTER)",
    "store/src/sqlite/tally.rs": r"const",
    "server/src/token_uses.rs": r"const",
}
#: Units and pauses, which are not limits.
NOT_BOUNDS = {"ACCEPT_PAUSE", "BYTES_PER_PERMIT", "COPIED_BYTES_MAX", "HEARTBEAT_EVERY", "KEY_BYTES", "LINE_BYTES", "LOOK_EVERY", "WINDOW_MS"}


def limits(tools):
    real = {}
    for path, keyword in BOUNDS.items():
        source = (tools.root / "crates" / path).read_text(encoding="utf-8")
        for name, value in re.findall(rf"^{keyword} ([A-Z_0-9]+): [\w:]+ = (.+?);", source, re.M):
            if name not in NOT_BOUNDS:
                real[name] = _value(value)
    problems, documented = [], set()
    for name, value, _ in blocks.rows(tools.docs / "limits.md", "Every bound by name"):
        name = "".join(blocks.code(name))
        documented.add(name)
        if name in real and not re.search(rf"(?<![\d,]){re.escape(real[name])}(?![\d,])", value):
            problems.append(f"{name} is {real[name]}, the page says {value}")
    return problems + differences("bound", documented, set(real))


def _value(text):
    """A constant's value as the page writes it."""
    duration = re.fullmatch(r"Duration::from_(secs|millis)\((.+)\)", text)
    if duration:
        return f"{_number(duration[2]):,} {'s' if duration[1] == 'secs' else 'ms'}"
    return f"{_number(text):,}"


def _number(text):
    if not re.fullmatch(r"[\d_ *]+", text):
        raise blocks.PageError(f"a bound is not a product of numbers: {text}")
    return math.prod(int(factor) for factor in text.split("*"))


def endpoints(tools, server):
    """Every endpoint of the OpenAPI document, aliases included; a test of the server compares that with the router."""
    document = openapi(server)
    real, main = set(), set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            real.add(f"{method.upper()} {path}")
            main |= set() if operation.get("deprecated") else {f"{method.upper()} {path}"}
    documented, problems = set(), []
    for row in blocks.rows(tools.docs / "api.md", "Endpoints"):
        names = [name.replace("…}", "}") for name in blocks.code(row[0]) + blocks.code(row[1])]
        documented.update(names)
        if names[0] in real - main:
            problems.append(f"{names[0]} is for older clients, and not the first of its row")
    return problems + differences("endpoint", documented, real)


def metrics(tools, server):
    real = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", server.get("/metrics"), re.M):
        real.add(f"{name}_total" if kind == "counter" else name)
    return differences("metric", listed_metrics(tools), real)


def listed_metrics(tools):
    return {"".join(blocks.code(row[0])) for row in blocks.rows(tools.docs / "operations.md", "Metrics")}


def delivery_headers(tools, server, receiver):
    server.publish(f"{receiver.url}/headers", {})
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not receiver.headers_at("/headers"):
        if time.monotonic() > deadline:
            return ["nothing was delivered"]
    real = {name.lower() for name, _ in receiver.headers_at("/headers")[0]}
    rows = blocks.rows(tools.docs / "signatures.md", "Headers of a delivery")
    return differences("header", {"".join(blocks.code(row[0])).lower() for row in rows}, real)


DAY_MS = 86_400_000
FUNCTIONS = {"pow": pow, "sqrt": math.sqrt, "abs": abs, "exp": math.exp, "floor": math.floor, "ceil": math.ceil,
             "round": round, "min": min, "max": max}


def retry_delays(tools, server, receiver):
    """The page's waits: all of them by arithmetic, the first one by the server."""
    problems = []
    for expression, waits in blocks.rows(tools.docs / "retries.md", "Examples of expressions"):
        expression = "".join(blocks.code(expression))
        said = [_milliseconds(wait) for wait in waits.split(", ")]
        names = {"__builtins__": {}, **FUNCTIONS}
        # The page is ours, so it may be evaluated.
        right = [eval(expression, names, {"retried": retried}) for retried in range(len(said))]
        right = [min(max(round(wait), 0), DAY_MS) for wait in right]
        if said != right:
            problems.append(f"{expression}: the page says {said}, it is {right}")
        first = _first_wait(server, receiver, expression)
        if first != right[0]:
            problems.append(f"{expression}: the server waits {first} ms, the page says {right[0]}")
    return problems


def _milliseconds(text):
    number, unit = text.split()
    return round(float(number.replace(",", "")) * {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000}[unit])


def _first_wait(server, receiver, expression):
    message = server.publish(f"{receiver.url}/fail", {"Upstash-Retry-Delay": expression})
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        path = f"/v2/logs?messageIds={message}&state=RETRY&order=earliestFirst"
        events = json.loads(server.get(path, DEV_USER["QSTASH_TOKEN"]))["events"]
        if events:
            return events[0]["nextDeliveryTime"] - events[0]["time"]
    return None
