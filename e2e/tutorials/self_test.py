"""Tests of the runner itself."""

import os
import tempfile
import unittest
from pathlib import Path

import needs
from blocks import read
from terminal import Failure, Terminal
from tutorial import with_ports


class Terminals(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.directory = Path(made.name).resolve()
        self.terminal = Terminal("1", self.directory, self.directory, {"PATH": "/usr/bin:/bin"})
        self.addCleanup(self.terminal.close)

    def test_directory_and_variables_last(self):
        self.terminal.run("mkdir inner\ncd inner\nA=1\nexport B=2\n")
        self.assertEqual(self.terminal.run('echo "$A$B"; sh -c \'echo "$A$B"\'\n'), "12\n2\n")
        self.assertEqual(self.terminal.directory, self.directory / "inner")

    def test_a_failed_command_is_a_failure(self):
        for commands in ("false\ntrue\n", "false | true\n", "no-such-program\n"):
            terminal = Terminal(str(hash(commands)), self.directory, self.directory, {"PATH": "/usr/bin:/bin"})
            self.addCleanup(terminal.close)
            with self.assertRaises(Failure, msg=commands):
                terminal.run(commands)

    def test_a_failed_terminal_takes_no_more_commands(self):
        with self.assertRaises(Failure):
            self.terminal.run("false\n")
        with self.assertRaises(Failure):
            self.terminal.run("true\n")

    def test_a_command_that_may_fail_leaves_the_terminal_as_it_was(self):
        self.assertEqual(self.terminal.run("echo one; cd /; false\n", may_fail=True), "one\n")
        self.assertEqual(self.terminal.directory, self.directory)
        self.assertEqual(self.terminal.run("echo two\n"), "two\n")

    def test_it_shows_stdout_and_stderr(self):
        self.terminal.run("echo one; echo two >&2\n")
        self.assertEqual(self.terminal.printed(), "one\ntwo\n")


class Texts(unittest.TestCase):
    def test_only_whole_ports_are_replaced(self):
        ports = {"8080": "1", "3001": "2"}
        self.assertEqual(with_ports("http://127.0.0.1:8080/3001 18080 30010", ports), "http://127.0.0.1:1/2 18080 30010")

    def test_output_of_a_tutorial_is_a_separate_block(self):
        with tempfile.TemporaryDirectory() as directory:
            page = Path(directory) / "page.md"
            page.write_text(
                "```bash tutorial=a terminal=2\ntrue\n```\n\n```json\n{}\n```\n\n```output tutorial=a terminal=1\nx\n```\n"
            )
            [command, shown] = read(page)
        self.assertEqual((command.expected.text, shown.text), ("{}\n", "x\n"))
        self.assertEqual(shown.options, {"tutorial": "a", "terminal": "1"})

    def test_a_file_of_a_tutorial_may_be_in_any_language(self):
        with tempfile.TemporaryDirectory() as directory:
            page = Path(directory) / "page.md"
            page.write_text("```ruby tutorial=a file=a.rb\n1\n```\n\n```json tutorial=a file=a.json\n{}\n```\n\n```ruby\n2\n```\n")
            listed = read(page)
        self.assertEqual([(block.options["file"], block.text) for block in listed], [("a.rb", "1\n"), ("a.json", "{}\n")])


class Needs(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.start = Path(made.name)

    def test_an_absent_program_is_missing(self):
        with self.assertRaises(needs.Missing):
            needs.provide({"no-such-program"}, os.environ["PATH"], self.start)

    def test_a_clone_is_in_the_directory(self):
        needs.provide({"clone"}, os.environ["PATH"], self.start)
        self.assertTrue((self.start / "posthaste/crates/kit/Cargo.toml").exists())

    def test_a_node_that_is_new_enough_is_used(self):
        node = self.start / "node"
        node.write_text("#!/bin/sh\necho v20.9.1\n")
        node.chmod(0o755)
        self.assertEqual(needs.provide({"node-20.9"}, str(self.start), self.start), (str(self.start), {}))

    def test_packages_without_a_source_are_local(self):
        lock = '[[package]]\nname = "a"\n\n[[package]]\nname = "b"\nsource = "registry"\n'
        self.assertEqual(needs.local_packages(lock), ["a"])


if __name__ == "__main__":
    unittest.main()
