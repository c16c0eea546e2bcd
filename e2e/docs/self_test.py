"""The runner itself: what it lets pass and what it does not. Run by run.py before the pages."""

import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

import blocks
import checks
import match


def written(text):
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory) / "page.md"
        page.write_text(text, encoding="utf-8")
        return blocks.read(page)


class Matching(unittest.TestCase):
    def test_json_must_be_the_same_but_for_what_is_left_open(self):
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

    def test_text_must_be_the_same_but_for_what_is_left_open(self):
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
    def test_blocks_have_flags_options_and_what_they_must_print(self):
        [first, second] = written(
            "```bash eventually\necho 1\n```\n\n```output\n1\n```\n\nText.\n\n```toml file=a.toml\nb = 1\n```\n"
        )
        self.assertEqual((first.text, first.flags, first.expected.text), ("echo 1\n", {"eventually"}, "1\n"))
        self.assertEqual((second.options, second.expected), ({"file": "a.toml"}, None))

    def test_a_reason_stands_right_before_its_block(self):
        [given] = written("<!-- no-run: it never ends -->\n```sh no-run\na\n```\n")
        [absent] = written("<!-- no-run: it never ends -->\nText.\n```sh no-run\na\n```\n")
        self.assertEqual((given.reason, absent.reason), ("it never ends", None))

    def test_mistakes_are_told(self):
        for text in ["```bash norun\n```\n", "```bash\n", "```output\n1\n```\n", "```sh\na\n```\nText.\n```output\n```\n"]:
            with self.assertRaises(blocks.PageError, msg=text):
                written(text)


if __name__ == "__main__":
    unittest.main()
