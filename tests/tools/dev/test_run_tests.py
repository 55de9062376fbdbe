#!/usr/bin/python3
"""test_run_tests.py - counts and outcomes of tools/test (tools/dev/run_tests.py), over made-up results."""

import contextlib
import io
import json
import os
import sys
import tempfile
import time
import types
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "tools", "dev"))
import run_tests  # noqa: E402


class MadeUp(run_tests.Run):
    """A run whose builds succeed at once and whose meson writes the given outcomes."""

    def __init__(self, mode, tests, outcomes, broken_builds=(), guests=None):
        """An outcome is one word, or a list: the outcomes of the first run in any suite, of the second, and so on."""
        super().__init__(mode, [])
        self.tests, self.outcomes, self.broken_builds = tests, outcomes, broken_builds
        self.calls = []       # of meson test: (base of its log, seconds, tests)
        self.guests = guests  # {check: outcome} in the virtual machine; None: it cannot run

    def prepare(self, suite, deadline):
        if suite.build in self.broken_builds:
            return "the build failed", "error: no such thing"
        self.ready.add(suite.build)
        os.makedirs(os.path.join(suite.build, "meson-logs"), exist_ok=True)
        return None

    def call_guests(self, command, log):
        if self.guests is None:
            with open(log, "w", encoding="utf-8") as out:
                out.write("skipped: no emulator\n")
            return 77
        alone = ": ".join((command[command.index("--setup") + 1], command[-1])) if "--setup" in command else None
        with open(command[command.index("--json") + 1], "w", encoding="utf-8") as out:
            json.dump([{"name": name, "outcome": self.next_of(self.guests, name), "seconds": 1, "words": "words of " + name,
                        "output": "said " + name}
                       for name in self.guests if alone in (None, name)], out)
        return 0

    @staticmethod
    def next_of(outcomes, name):
        outcome = outcomes.get(name, "OK")
        if isinstance(outcome, list):
            return outcome.pop(0) if len(outcome) > 1 else outcome[0]
        return outcome

    def lines(self):
        def call(command, log, seconds, environment=None):
            if "tests/vm/suite.py" in command:
                return self.call_guests(command, log)
            base = command[command.index("--logbase") + 1]
            self.calls.append((base, seconds, [name for name in self.tests if name in command]))
            wrapper = "-" + os.path.basename(command[command.index("--wrapper") + 1]) if "--wrapper" in command else ""
            with open(os.path.join(command[3], "meson-logs", base + wrapper + ".json"), "w", encoding="utf-8") as out:
                for name in self.tests:
                    if name in command and self.outcomes.get(name) != "nothing":
                        record = {"name": name, "result": self.next_of(self.outcomes, name), "stdout": "said " + name}
                        out.write(json.dumps(record) + "\n")
            return 0
        kept = run_tests.call, run_tests.introspect
        run_tests.call = call
        run_tests.introspect = lambda build, what: [{"name": name, "suite": ["weft:" + s for s in suites]}
                                                    for name, suites in self.tests.items()]
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                self.status = self.all()
        finally:
            run_tests.call, run_tests.introspect = kept
        return printed.getvalue().rstrip("\n").split("\n")


TESTS = {"a": ["quick"], "b": ["quick", "full"], "seeds": ["sim"], "train": ["system"], "slow": ["full"], "soak": ["long"]}


class RunTestsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.before = os.getcwd()
        os.chdir(self.folder.name)
        self.which, run_tests.shutil.which = run_tests.shutil.which, lambda name: name

    def tearDown(self):
        run_tests.shutil.which = self.which
        os.chdir(self.before)
        self.folder.cleanup()

    def test_quick_counts_quick(self):
        run = MadeUp("quick", TESTS, {})
        self.assertEqual(run.lines()[-2:], ["0 skipped", "2 passed, 0 failed"])
        self.assertEqual(run.status, 0)

    def test_failures_are_shown_and_counted(self):
        for outcome in ("FAIL", "TIMEOUT", "ERROR", "UNEXPECTEDPASS"):
            run = MadeUp("quick", TESTS, {"a": outcome})
            lines = run.lines()
            self.assertEqual(lines[-2:], ["0 skipped", "1 passed, 1 failed"])
            self.assertIn("said a", lines)
            self.assertEqual(len([line for line in lines[-4:] if line.startswith(f"failed: a ({outcome}, ")]), 1, lines)
            self.assertEqual(run.status, 1)

    def test_skipped_tests_are_counted(self):
        run = MadeUp("quick", TESTS, {"a": "SKIP"})
        self.assertEqual(run.lines()[-2:], ["1 skipped", "1 passed, 0 failed"])
        self.assertEqual(run.status, 0)

    def test_each_test_runs_once_per_build(self):
        run = MadeUp("full", TESTS, {})
        lines = run.lines()
        passed = {line.split(":")[0]: int(line.split()[1]) for line in lines if " passed, " in line and ":" in line}
        self.assertEqual(passed, {"quick": 2, "user": 2, "simulator": 1, "multi-process": 1, "address": 4, "thread": 3, "rest": 1})
        # Skipped: no fuzz targets, no virtual machine, the long test.
        self.assertEqual(lines[-2:], ["3 skipped", "14 passed, 0 failed"])
        self.assertTrue(any(line.startswith("virtual-machine: ") and "skipped: no emulator" in line for line in lines))

    def test_ci_fails_when_a_suite_that_must_run_did_not(self):
        some = {name: suites for name, suites in TESTS.items() if name != "train"}
        run = MadeUp("ci", some, {})
        lines = run.lines()
        self.assertIn("FAILED: multi-process must run in continuous integration and did not", lines)
        self.assertEqual(run.status, 1)
        self.assertEqual(MadeUp("full", some, {}).lines()[-1].split(", ")[1], "0 failed")

    def test_a_test_that_passes_alone_is_unstable(self):
        run = MadeUp("ci", TESTS, {"seeds": ["FAIL", "OK"]})
        lines = run.lines()
        self.assertEqual(lines[-1], "14 passed, 0 failed")
        self.assertEqual(lines[-3:-2], ["unstable: seeds failed once and passed alone: said seeds (suite simulator)"])
        self.assertEqual([names for base, _, names in run.calls if base.endswith("-rerun")], [["seeds"]])
        self.assertEqual(run.status, 0)

    def test_an_ordinary_users_test_runs_again_as_that_user(self):
        run = MadeUp("full", {"a": ["quick"]}, {"a": ["OK", "TIMEOUT", "OK"]})
        lines = run.lines()
        self.assertIn("unstable: a failed once and passed alone: it timed out; last line: said a (suite user)", lines)
        self.assertEqual(run.status, 0)

    def test_two_unstable_tests_pass_and_three_fail(self):
        once = ["FAIL", "OK"]
        run = MadeUp("ci", TESTS, {"a": list(once), "train": list(once)})
        self.assertEqual(run.lines()[-1], "14 passed, 0 failed")
        self.assertEqual(run.status, 0)
        run = MadeUp("ci", TESTS, {"a": list(once), "train": list(once), "slow": list(once)})
        lines = run.lines()
        self.assertEqual(len([line for line in lines if line.startswith("unstable: ")]), 3)
        self.assertIn("FAILED: 3 tests are unstable, more than 2", lines)
        self.assertEqual(lines[-1], "14 passed, 1 failed")
        self.assertEqual(run.status, 1)

    def test_a_test_that_fails_twice_has_failed(self):
        for again in ("FAIL", "TIMEOUT", "SKIP", "INTERRUPT"):
            run = MadeUp("quick", TESTS, {"a": ["FAIL", again]})
            lines = run.lines()
            self.assertEqual(lines[-1], "1 passed, 1 failed")
            self.assertIn("said a", lines)
            self.assertFalse([line for line in lines if line.startswith("unstable: ")])
            self.assertEqual(run.status, 1)

    def test_reruns_end_with_their_time(self):
        run = MadeUp("ci", TESTS, {"a": ["FAIL", "OK"], "b": ["FAIL", "OK"]})
        kept = run.meson_alone
        clock = [time.monotonic()]
        run_tests.time = types.SimpleNamespace(monotonic=lambda: clock[0])

        def slow_rerun(suite, command, name, log, seconds):
            clock[0] += seconds
            return kept(suite, command, name, log, seconds)
        run.meson_alone = slow_rerun
        try:
            lines = run.lines()
        finally:
            run_tests.time = time
        self.assertIn("  b failed and did not run again: the 120 s for all reruns were over", lines)
        self.assertEqual([(seconds, names) for base, seconds, names in run.calls if base.endswith("-rerun")], [(120, ["a"])])
        self.assertEqual(lines[-1], "13 passed, 1 failed")
        self.assertEqual(run.status, 1)

    def test_a_check_in_the_guest_runs_again_too(self):
        run = MadeUp("ci", TESTS, {}, guests={"one: a": ["FAILED", "ok"], "one: b": "ok"})
        lines = run.lines()
        self.assertIn("unstable: one: a failed once and passed alone: words of one: a (suite virtual-machine)", lines)
        self.assertEqual(lines[-1], "16 passed, 0 failed")

    def test_suites_have_what_others_leave_of_their_time(self):
        run = MadeUp("ci", TESTS, {})
        clock = [time.monotonic()]
        run_tests.time = types.SimpleNamespace(monotonic=lambda: clock[0])
        try:
            run.lines()
        finally:
            run_tests.time = time
        minutes = {base.removeprefix("testlog-"): seconds / 60 for base, seconds, _ in run.calls}
        shares = {suite.name: suite.minutes for suite in run_tests.SUITES}
        empty = sum(shares[name] for name in ("fleet", "python", "nccl", "services"))
        self.assertAlmostEqual(minutes["quick"], shares["quick"])
        self.assertAlmostEqual(minutes["user"], shares["quick"] + shares["user"] + empty)
        self.assertAlmostEqual(minutes["address"], empty + sum(
            shares[name] for name in ("quick", "user", "simulator", "multi-process", "address")))

    def test_suites_of_later_have_a_line_once_they_have_tests(self):
        self.assertFalse([line for line in MadeUp("ci", TESTS, {}).lines() if line.startswith(("fleet:", "python:", "nccl:", "services:"))])
        lines = MadeUp("ci", {**TESTS, "torch": ["python"]}, {}).lines()
        self.assertTrue([line for line in lines if line.startswith("python: ") and "1 passed, 0 failed" in line])
        self.assertEqual(lines[-1], "15 passed, 0 failed")

    def test_the_reason_is_the_line_that_says_it(self):
        self.assertEqual(run_tests.reason_line("start\nx.c:3: error: 1 != 2\nmore\nlast", "FAIL"), "x.c:3: error: 1 != 2")
        self.assertEqual(run_tests.reason_line("start\nlast\n\n", "FAIL"), "last")
        self.assertEqual(run_tests.reason_line("", "ERROR"), "ERROR")

    def test_ci_bears_a_shortened_suite_but_not_a_shortened_quick(self):
        run = MadeUp("ci", {**TESTS, "seeds2": ["sim"]}, {"seeds2": "nothing"})
        lines = run.lines()
        self.assertTrue(any(line.startswith("simulator:") and "shortened" in line and "1 did not run" in line for line in lines))
        self.assertEqual(run.status, 0)
        run = MadeUp("ci", TESTS, {"b": "nothing"})
        self.assertTrue(any(line.startswith("FAILED: quick") for line in run.lines()))
        self.assertEqual(run.status, 1)

    def test_a_broken_build_is_a_failure(self):
        run = MadeUp("full", TESTS, {}, broken_builds=["build-tsan"])
        lines = run.lines()
        self.assertIn("error: no such thing", lines)
        self.assertEqual(lines[-1], "11 passed, 1 failed")

    def test_guests_are_counted(self):
        run = MadeUp("full", TESTS, {}, guests={"one: a": "ok", "one: b": "skipped", "pair: a": "ok"})
        self.assertEqual(run.lines()[-2:], ["3 skipped", "16 passed, 0 failed"])
        run = MadeUp("ci", TESTS, {}, guests={"one: a": "FAILED", "one: b": "not run"})
        lines = run.lines()
        self.assertEqual(lines[-1], "14 passed, 1 failed")
        self.assertIn("said one: a", lines)
        self.assertTrue(any(line.startswith("virtual-machine:") and "shortened" in line for line in lines))

    def test_shares_fit_the_budget(self):
        self.assertLessEqual(sum(suite.minutes for suite in run_tests.SUITES), 70)

    def test_a_command_out_of_time_is_ended_with_its_children(self):
        started = time.monotonic()
        status = run_tests.call(["sh", "-c", "sleep 1000 & echo $! > child; wait"], "log", 1)
        self.assertIsNone(status)
        self.assertLess(time.monotonic() - started, 500)
        with open("child", encoding="utf-8") as file:
            child = file.read().strip()
        for _ in range(600):
            if not self.is_running(child):
                return
            time.sleep(0.1)
        self.fail("a child is still running")

    @staticmethod
    def is_running(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                return file.read().split(")")[1].split()[0] not in "ZX"
        except FileNotFoundError:
            return False


if __name__ == "__main__":
    unittest.main()
