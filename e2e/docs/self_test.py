"""Tests of the runner itself. run.py runs them before the pages."""

import sys
import tempfile
import unittest
from pathlib import Path

import absences
import blocks
import claims
import match
from receiver import Receiver


def written(text):
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory) / "page.md"
        page.write_text(text, encoding="utf-8")
        return blocks.read(page)


class Matching(unittest.TestCase):
    def test_json_must_match_except_for_placeholders(self):
        cases = [
            ('{"a": 1}', '{"a": 1}', True),
            ('{"a": 1}', '{"a": 2}', False),
            ('{"a": 1}', '{"a": true}', False),
            ('{"a": 1}', '{"a": 1, "b": 2}', False),
            ('{"a": 1, …}', '{"a": 1, "b": 2}', True),
            ('{"a": 1, …}', '{"b": 2}', False),
            ('{"a": …}', '{"a": [1]}', True),
            ('{"a": …}', "{}", False),
            ('{"id": "msg_…"}', '{"id": "msg_7"}', True),
            ('{"id": "msg_…"}', '{"id": "dlq_7"}', False),
            ("[1, …]", "[1, 2, 3]", True),
            ("[1, …]", "[2]", False),
            ("[1]", "[1, 2]", False),
            ("[1, 2]", "[1]", False),
            ("{}", "not JSON", False),
            ("{", "{}", False),
        ]
        for expected, printed, same in cases:
            self.assertEqual(match.mismatch(expected, "json", printed) is None, same, (expected, printed))

    def test_text_must_match_except_for_placeholders(self):
        cases = [
            ("one\ntwo\n", "one\ntwo\n", True),
            ("one\n", "one\ntwo\n", False),
            ("one\n…\n", "one\ntwo\nthree\n", True),
            ("…\nthree\n", "one\ntwo\nthree\n", True),
            ("…\nthree\n", "one\ntwo\n", False),
            ("id …, done\n", "id 17, done\n", True),
            ("id …, done\n", "id 17\n, done\n", False),
            ("a.c\n", "abc\n", False),
        ]
        for expected, printed, same in cases:
            self.assertEqual(match.mismatch(expected, "output", printed) is None, same, (expected, printed))


class Reading(unittest.TestCase):
    def test_blocks_have_flags_options_and_expected_output(self):
        [first, second] = written(
            "```bash eventually\necho 1\n```\n\n```output\n1\n```\n\nText.\n\n```toml file=a.toml\nb = 1\n```\n"
        )
        self.assertEqual((first.text, first.flags, first.expected.text), ("echo 1\n", {"eventually"}, "1\n"))
        self.assertEqual((second.options, second.expected), ({"file": "a.toml"}, None))

    def test_a_reason_stands_right_before_its_block(self):
        [given] = written("<!-- no-run: it never ends -->\n```sh no-run\na\n```\n")
        [absent] = written("<!-- no-run: it never ends -->\nText.\n```sh no-run\na\n```\n")
        self.assertEqual((given.reason, absent.reason), ("it never ends", None))

    def test_mistakes_are_reported(self):
        for text in ["```bash norun\n```\n", "```bash\n", "```output\n1\n```\n", "```sh\na\n```\nText.\n```output\n```\n"]:
            with self.assertRaises(blocks.PageError, msg=text):
                written(text)


HELP = {"dev": "  --port <N>\n  --print-env\n", "serve": "  --config <FILE>\n", "sim": "  --seeds <N>\n"}
DOCUMENT = {"paths": {"/v2/publish/{destination}": {}, "/v2/queues/{name}/pause": {}, "/v2/logs": {}, "/health": {}}}


class Existence(unittest.TestCase):
    def test_commands_and_flags(self):
        cases = [
            ("`posthaste dev --port 8081`", []),
            ("```bash\nposthaste dev --port 8081 | grep --quiet x\nls # posthaste stop\n```", []),
            ("```bash\neval \"$(posthaste dev \\\n  --print-env)\"\n```", []),
            ("`cargo test -p posthaste --test it`, posthaste stop, `--port`, `posthaste --version`", []),
            ("`posthaste stop`", ["p: there is no command posthaste stop"]),
            ("`target/release/posthaste dev --seeds 1`", ["p: posthaste dev has no --seeds"]),
            ("```bash\nX=1 posthaste serve \\\n  --prot 8081\n```", ["p: posthaste serve has no --prot"]),
            ("`posthaste --port 1`", ["p: posthaste --port has no --port"]),
            ("`--prot`", ["p: no command of posthaste has --prot"]),
        ]
        for text, problems in cases:
            self.assertEqual(claims.commands({"p": text}, HELP), problems, text)

    def test_endpoints(self):
        cases = [
            ("`POST /v2/publish/{destination…}`, /v2/publish/https://a.com/b?c, `/v2/publish/`, /v2/publish/…", []),
            ("`/v2/queues/orders/pause`, `/v2/queues/{name}/{action}`, `/v2/logs?count=1`, GET /v2/logs.", []),
            ("https://api.example.com/v1/chat, `\"$QSTASH_URL/v2/logs\"`, http://127.0.0.1:8080/v2/logs", []),
            ("`/v2/log`", ["p: there is no endpoint /v2/log"]),
            ("`/v2/publish`", ["p: there is no endpoint /v2/publish"]),
            ("http://127.0.0.1:8080/v2/queues/a/stop", ["p: there is no endpoint /v2/queues/a/stop"]),
            ("`/v2/logs/more/`", ["p: there is no endpoint /v2/logs/more/"]),
        ]
        for text, problems in cases:
            self.assertEqual(claims.endpoints({"p": text}, DOCUMENT, []), problems, text)
        gone = [("p", "`/v1/tasks` | no")]
        self.assertEqual(claims.endpoints({"p": "`/v1/tasks`"}, DOCUMENT, gone), [])
        self.assertEqual(claims.endpoints({"q": "`/v1/tasks`"}, DOCUMENT, gone), ["q: there is no endpoint /v1/tasks"])

    def test_metrics_and_settings(self):
        pages = {"p": "`posthaste_a_seconds_bucket{le=1}` posthaste_kit posthaste_b"}
        self.assertEqual(claims.metrics(pages, {"posthaste_a_seconds"}), ["p: there is no metric posthaste_b"])
        pages = {"p": "[`a = true`](configuration.md#settings) [`b`](../docs/configuration.md#quotas) [`c`](api.md)"}
        self.assertEqual(claims.settings(pages, {"a"}), ["p: there is no setting b"])

    def test_versions(self):
        tested = {"a": {"1.2.3", "2.0.0"}}
        places = [("p", r"works with (.+)$", ["a"])]
        cases = [
            ("works with 1.2.3 and 2.0", []),
            ("works with 1.2.3, 2.0.0 and 3.1", ["p: a 3.1 is not tested"]),
            ("works with 1.2.3", ["p: does not name a 2.0.0, which is tested"]),
            ("works with 1.20.0 and 2.0", ["p: a 1.20.0 is not tested", "p: does not name a 1.2.3, which is tested"]),
            ("fails", ["p: names no versions of a where e2e/docs/claims.py looks for them"]),
        ]
        for text, problems in cases:
            self.assertEqual(claims.sdk_versions({"p": text}, tested, places), problems, text)


class Absence(unittest.TestCase):
    def test_claims_are_found_by_their_words_in_lists_and_in_tables(self):
        cases = [
            (
                "a.md",
                "Text. Posthaste has no wheels, so\nit slides. There is no\nroof.",
                ["Posthaste has no wheels, so it slides.", "There is no roof."],
            ),
            ("a.md", "It is not implemented.\n\n```\nThere is no code.\n```\n\n<!-- There is no x. -->", ["It is not implemented."]),
            ("a.md", "Posthaste has wheels. There are two. It is [not implemented yet](b.md). There is no official SDK.", []),
            (
                "docs/compare.md",
                "## Missing in Posthaste\n\n- **Wheels.** It slides.\n- Doors\n  and windows\n\n## Next\n\n- Roof",
                ["Wheels.", "Doors and windows"],
            ),
            (
                "a.md",
                "| wheels | your own |\n\n## What is different\n\n| a | b |\n|---|---|\n| wheels | your own |\n| doors | included |\n| roof | no: use `x` |",
                ["wheels | your own", "roof | no: use `x`"],
            ),
        ]
        for page, text, expected in cases:
            self.assertEqual(absences.claims(page, text), expected, text)

    def test_a_claim_must_be_listed_made_and_true(self):
        world = absences.World(Path("."), Path("python3"), "", {"wheel-count"}, set())
        true, false = [absences.no_setting("door")], [absences.no_setting("wheel")]
        page = {"a.md": "Posthaste has no wheels."}
        cases = [
            ([("a.md", "Posthaste has no wheels.", true)], []),
            ([], ["a.md: e2e/docs/absences.py does not check the claim: Posthaste has no wheels."]),
            ([("a.md", "no wheels", false)], ["a.md says “no wheels”, but there is --wheel-count"]),
            ([("a.md", "no wheels", true), ("b.md", "no doors", true)], ["b.md does not claim this, remove it from e2e/docs/absences.py: no doors"]),
            (
                [("a.md", "has no wheels", true), ("a.md", "There is no roof.", true)],
                ["a.md does not claim this, remove it from e2e/docs/absences.py: There is no roof."],
            ),
        ]
        for listed, problems in cases:
            self.assertEqual(absences.problems(page, world, listed), problems, listed)

    def test_probes_find_what_exists(self):
        receiver = Receiver()
        try:
            with tempfile.TemporaryDirectory() as directory:
                root = Path(directory)
                (root / "Dockerfile").write_text("FROM x\n## 1.0\n", encoding="utf-8")
                world = absences.World(root, Path(sys.executable), receiver.url, {"a-postgres-url"}, {"/v2/Alerts"})
                cases = [
                    (absences.no_setting("redis"), absences.no_setting("postgres")),
                    (absences.no_endpoint("portal"), absences.no_endpoint("alert")),
                    (absences.no_file("*.deb"), absences.no_file("*.deb", "Docker*")),
                    (absences.no_text("Dockerfile", r"^## 2"), absences.no_text("Dockerfile", r"^## 1")),
                    (absences.answers(500, "POST", "/fail"), absences.answers(404, "POST", "/ok")),
                    (absences.python_lacks("json", "decoder.nothing"), absences.python_lacks("json", "decoder.JSONDecoder")),
                    (absences.unchecked("why"), absences.python_lacks("no_such_package", "nothing")),
                ]
                for absent, present in cases:
                    self.assertEqual((absent(world), len(present(world))), ([], 1))
        finally:
            receiver.stop()


if __name__ == "__main__":
    unittest.main()
