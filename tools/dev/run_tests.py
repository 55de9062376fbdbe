"""run_tests.py - builds and runs the test suites for tools/test.

    run_tests.py quick|full|ci [SUITE,SUITE...]

A suite is one line of the report: a build directory and some of the tests of meson. The tests are read from meson
(`meson introspect --tests`), so a new test needs no line in this file:

    test in meson's suite     runs in
    quick                     quick, user, address, thread
    sim                       simulator, address, thread
    system                    multi-process, address
    fleet                     fleet
    full                      rest
    python                    python
    nccl                      nccl
    services                  services
    (tests/fuzz/fuzz_*)       fuzz
    (tests/vm/checks.py)      virtual-machine

A test in several suites of meson runs once, in the first of ORDER.

A failed test runs again, alone. If it passes, it counts as passed and is reported as unstable. More than UNSTABLE_LIMIT
unstable tests fail the run.
"""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

FLAGS = ["-Dwerror=true"]
# -O1 and -g1: the sanitizers take twice the time to compile otherwise, and their tests are no slower for it.
SANITIZER_FLAGS = ["-Dbuildtype=debugoptimized", "-Doptimization=1", "-Dcuda=disabled", "-Db_lundef=false",
                   "-Dc_args=-DWEFT_DEBUG=1 -g1"]
CLANG = {"CC": "clang-14", "CC_LD": "bfd"}
# The thread sanitizer of gcc fails with the memory hooks of UCX: that of clang is used, and the hooks are off.
QUIET_UCX = {"UCX_MEM_EVENTS": "n"}

BUILDS = {  # directory: (meson options, environment of setup, environment of tests, programs it needs)
    "build-test": (FLAGS, {}, {}, []),
    # Warnings are no errors here: gcc warns about paths that only the checks of the sanitizer add.
    "build-asan": (SANITIZER_FLAGS + ["-Db_sanitize=address,undefined"], {}, {}, []),
    "build-tsan": (FLAGS + SANITIZER_FLAGS + ["-Db_sanitize=thread"], CLANG, QUIET_UCX, ["clang-14"]),
    "build-fuzz": (FLAGS + SANITIZER_FLAGS + ["-Db_sanitize=address,undefined", "-Dfuzz=true",
                                             "-Dtests=disabled", "-Dexamples=disabled"], CLANG, {}, ["clang-14"]),
}


TARGETS = {"build-fuzz": ["fuzz-targets"]}  # of a directory in which only a part is used


class Suite:
    def __init__(self, name, build, minutes, picks, *, must=True, later=False, slower=1, wrapper=None, thorough=False):
        self.name, self.build, self.minutes, self.picks = name, build, minutes, picks
        self.must = must          # --ci fails if no test of it ran
        self.later = later        # without tests its line is left out
        self.slower = slower      # factor of the time limits of the tests
        self.wrapper = wrapper
        self.thorough = thorough  # must be complete in --ci


SUITES = [  # minutes: share of the 70 minutes of --ci, build included
    Suite("quick", "build-test", 10, ["quick"], thorough=True, slower=2),
    Suite("user", "build-test", 4, ["quick"], slower=2, wrapper="tools/dev/as-ordinary-user"),
    Suite("simulator", "build-test", 6, ["sim"]),
    Suite("multi-process", "build-test", 10, ["system"], slower=2),
    Suite("fleet", "build-test", 1, ["fleet"], later=True, slower=2),
    Suite("address", "build-asan", 8, ["quick", "sim", "system"], slower=5),
    Suite("thread", "build-tsan", 6, ["quick", "sim"], slower=10),
    Suite("rest", "build-test", 2, ["full"], must=False, slower=2),
    Suite("python", "build-test", 9, ["python"], later=True, slower=2),
    Suite("nccl", "build-test", 1, ["nccl"], later=True, slower=2),
    Suite("services", "build-test", 3, ["services"], later=True, slower=2),
    Suite("fuzz", "build-fuzz", 5, [], must=False),
    Suite("virtual-machine", "build-test", 5, [], must=False),
]
BUDGET_MINUTES = 70
ORDER = ["quick", "sim", "system", "fleet", "python", "nccl", "services", "full"]
FUZZ_SECONDS = 20  # per target, without a time budget
RERUN_SECONDS = 120  # all reruns of failed tests together
UNSTABLE_LIMIT = 2
BROKEN_SANITIZER = "LeakSanitizer has encountered a fatal error"
REASON = re.compile(r"\[  ERROR   \]|[Ee]rror: |ERROR: |FAILED|Assertion|differs?\b|expected")


class Result:
    def __init__(self):
        self.passed, self.failed, self.skipped = 0, 0, 0
        self.failures = []  # (case, output)
        self.to_rerun = []  # (test, reason, failure) of tests counted as failed


def call(command, log, seconds, environment=None):
    """Runs the command with its output appended to `log`. Returns the exit status; None: timed out, and its process group was killed."""
    with open(log, "ab") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                   start_new_session=True, env={**os.environ, **(environment or {})})
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                # Meson ends its tests on SIGTERM; processes that do not end are killed.
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def tail(path, lines=40):
    with open(path, encoding="utf-8", errors="replace") as file:
        return "".join(file.readlines()[-lines:]).rstrip()


def introspect(build, what):
    text = subprocess.run(["meson", "introspect", build, "--" + what], stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(text)


def reason_line(output, outcome):
    """The line of the output of a failed test that probably has the reason."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if outcome == "TIMEOUT":
        return "it timed out" + (f"; last line: {lines[-1]}" if lines else "")
    return next((line for line in lines if REASON.search(line)), lines[-1] if lines else outcome)[:200]


def first_suite(test):
    """The suite of meson in which a test runs; None: it is run by hand (long)."""
    names = [suite.split(":")[-1] for suite in test["suite"]]
    return next((name for name in ORDER if name in names), None)


class Run:
    def __init__(self, mode, only):
        self.mode, self.only = mode, only
        self.total = Result()
        self.unready = {}   # build directory: reason why it cannot be used
        self.must_missing = []
        self.ready = set()
        self.spare = 0.0    # unused seconds of finished suites and of suites without tests
        self.empty_known = False  # suites without tests are included in spare
        self.rerun_seconds = RERUN_SECONDS
        self.unstable = {}  # test: (suite, reason)

    # --- one line per suite ---

    def print_line(self, suite, text):
        print(f"{suite.name + ':':<17}{text}", flush=True)

    def skip(self, suite, reason):
        self.print_line(suite, f"skipped: {reason}")
        self.total.skipped += 1
        if suite.must:
            self.must_missing.append(suite.name)

    def fail(self, suite, reason, output):
        self.print_line(suite, f"FAILED: {reason}")
        self.total.failed += 1
        self.total.failures.append((f"{suite.name}: {reason}", output))

    # --- building ---

    def prepare(self, suite, deadline):
        """Sets up and builds, each directory once. None, or (reason, output) of a failure."""
        build = suite.build
        if build in self.ready:
            return None
        with tempfile.NamedTemporaryFile() as log:
            reason = self.build(build, log.name, deadline)
            os.makedirs(os.path.join(build, "meson-logs"), exist_ok=True)
            shutil.copyfile(log.name, os.path.join(build, "meson-logs", "build.txt"))
            if reason:
                return reason, tail(log.name)
        self.ready.add(build)
        return None

    @staticmethod
    def build(build, log, deadline):
        """None, or the reason of the failure."""
        flags, setup_environment, _, _ = BUILDS[build]
        if not os.path.exists(os.path.join(build, "build.ninja")):
            shutil.rmtree(build, ignore_errors=True)
            if call(["meson", "setup", build] + flags, log, left(deadline), setup_environment) != 0:
                return "meson setup failed"
        status = call(["ninja", "-C", build] + TARGETS.get(build, []), log, left(deadline))
        if status is None:
            return "the build took longer than its share of time"
        return "the build failed" if status != 0 else None

    # --- running ---

    def is_empty(self, suite):
        """Whether meson lists no test of this suite. Valid once its build is configured."""
        return suite.build in self.ready and not any(first_suite(test) in suite.picks for test in introspect(suite.build, "tests"))

    def run(self, suite):
        """Runs the suite. In --ci its limit is its share plus the unused time of the suites before it."""
        started, rerun_seconds = time.monotonic(), self.rerun_seconds
        share = suite.minutes * 60 + self.spare
        self.run_within(suite, started, share)
        used = time.monotonic() - started - (rerun_seconds - self.rerun_seconds)
        self.spare = max(0.0, share - used)
        if not self.empty_known and "build-test" in self.ready:
            self.empty_known = True
            self.spare += sum(60 * other.minutes for other in SUITES if other.later and self.is_empty(other))

    def run_within(self, suite, started, share):
        deadline = started + share if self.mode == "ci" else None
        absent = [name for name in BUILDS[suite.build][3] if not shutil.which(name)]
        if absent:
            self.skip(suite, f"{' and '.join(absent)} is not installed (tools/install-packages --full)")
            return
        failure = self.prepare(suite, deadline)
        if failure:
            self.fail(suite, *failure)
            return
        result = Result()
        if suite.name == "fuzz":
            left_out = self.run_fuzz(suite, deadline, result)
        elif suite.name == "virtual-machine":
            left_out = self.run_guests(suite, deadline, result)
        else:
            left_out = self.run_meson(suite, deadline, result)
        if left_out is None:
            return
        self.report(suite, result, left_out, time.monotonic() - started, share)

    def report(self, suite, result, left_out, seconds, share):
        text = f"{result.passed} passed, {result.failed} failed"
        if result.skipped:
            text += f", {result.skipped} skipped"
        text += f" in {seconds:.0f} s"
        if left_out:
            text += f"; shortened: its {share / 60:.0f} minutes were over, {left_out} did not run or end"
            result.skipped += left_out
            if suite.thorough or result.passed + result.failed == 0:
                self.must_missing.append(suite.name)
        self.print_line(suite, text)
        self.total.passed += result.passed
        self.total.failed += result.failed
        self.total.skipped += result.skipped
        self.total.failures += result.failures

    def run_meson(self, suite, deadline, result):
        """Runs the tests of the suite. Returns the number of tests left out; None: the whole suite was skipped."""
        tests = [test["name"] for test in introspect(suite.build, "tests") if first_suite(test) in suite.picks]
        if not tests:
            self.skip(suite, f"no test is in meson's suite {' or '.join(suite.picks)}")
            return None
        base = "testlog-" + suite.name
        records = os.path.join(suite.build, "meson-logs", base + ("-" + os.path.basename(suite.wrapper) if suite.wrapper else "")
                               + ".json")
        if os.path.exists(records):
            os.remove(records)
        command = ["meson", "test", "-C", suite.build, "--no-rebuild", "--logbase", base, "-t", str(suite.slower)]
        if suite.wrapper:
            command += ["--wrapper", os.path.abspath(suite.wrapper)]
        log = os.path.join(suite.build, "meson-logs", suite.name + "-run.txt")
        open(log, "w", encoding="utf-8").close()
        call(command + tests, log, left(deadline), BUILDS[suite.build][2])
        if not os.path.exists(records):
            self.fail(suite, "meson test wrote no result", tail(log))
            return None
        again = self.without_result(records)
        count = self.read_records(records, result, again)
        if again:
            print(f"  repeated, because the sanitizer failed: {', '.join(sorted(again))}")
            call(command[:command.index(base)] + [base + "-again"] + command[command.index(base) + 1:] + sorted(again), log, left(deadline),
                 BUILDS[suite.build][2])
            records = records.replace(base, base + "-again")
            if os.path.exists(records):
                count += self.read_records(records, result)
        self.rerun(suite, result, lambda name, seconds: self.meson_alone(suite, command, name, log, seconds))
        return len(tests) - count

    def rerun(self, suite, result, passes_alone):
        """Repeats each failed test while time is left. A test that passes then is unstable, not failed."""
        for name, reason, failure in result.to_rerun:
            if self.rerun_seconds <= 0:
                print(f"  {name} failed and did not run again: the {RERUN_SECONDS} s for all reruns were over")
                continue
            started = time.monotonic()
            passed = passes_alone(name, self.rerun_seconds)
            self.rerun_seconds -= time.monotonic() - started
            if passed:
                result.failed -= 1
                result.passed += 1
                result.failures.remove(failure)
                self.unstable.setdefault(name, (suite.name, reason))

    def meson_alone(self, suite, command, name, log, seconds):
        """Whether the test passes alone; `command` is the one that ran the suite."""
        base = command[command.index("--logbase") + 1]
        records = os.path.join(suite.build, "meson-logs",
                               base + "-rerun" + ("-" + os.path.basename(suite.wrapper) if suite.wrapper else "") + ".json")
        if os.path.exists(records):
            os.remove(records)
        call([base + "-rerun" if word == base else word for word in command] + [name], log, seconds, BUILDS[suite.build][2])
        alone = Result()
        if os.path.exists(records):
            self.read_records(records, alone)
        return alone.passed > 0 and alone.failed == 0

    @staticmethod
    def without_result(path):
        """Names of the tests in which the leak sanitizer itself failed, without a result about leaks."""
        with open(path, encoding="utf-8", errors="replace") as file:
            records = [json.loads(line) for line in file]
        return {record["name"].split(" / ")[-1] for record in records
                if record["result"] == "FAIL" and BROKEN_SANITIZER in (record.get("stderr") or "") + (record.get("stdout") or "")}

    @staticmethod
    def read_records(path, result, left_out=()):
        """Counts the results of meson, one JSON object per line; returns their number."""
        count = 0
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                record = json.loads(line)
                outcome = record["result"]
                if outcome == "INTERRUPT" or record["name"].split(" / ")[-1] in left_out:
                    continue
                count += 1
                if outcome in ("OK", "EXPECTEDFAIL"):
                    result.passed += 1
                elif outcome == "SKIP":
                    result.skipped += 1
                else:
                    result.failed += 1
                    output = (record.get("stdout") or "") + (record.get("stderr") or "")
                    failure = (f"{record['name']} ({outcome}, {path})", "\n".join(output.splitlines()[-40:]))
                    result.failures.append(failure)
                    result.to_rerun.append((record["name"].split(" / ")[-1], reason_line(output, outcome), failure))
        return count

    def run_fuzz(self, suite, deadline, result):
        targets = sorted(path for path in glob.glob(os.path.join(suite.build, "tests", "fuzz", "fuzz_*"))
                         if os.access(path, os.X_OK) and os.path.isfile(path) and not path.endswith("_replay"))
        if not targets:
            self.skip(suite, "there are no fuzz targets")
            return None
        seconds = FUZZ_SECONDS if deadline is None else max(1, min(FUZZ_SECONDS, int(left(deadline) / len(targets)) - 2))
        for index, target in enumerate(targets):
            if deadline is not None and left(deadline) < seconds:
                return len(targets) - index
            self.fuzz(target, seconds, result)
        return 0

    @staticmethod
    def fuzz(target, seconds, result):
        name = os.path.basename(target)
        known = os.path.join("tests", "fuzz", "corpus", name.removeprefix("fuzz_"))
        with tempfile.TemporaryDirectory() as found:
            log = os.path.join(found, "log")
            os.mkdir(os.path.join(found, "corpus"))
            call([os.path.abspath(target) + "_replay", "--write", os.path.join(found, "corpus")], log, 60)
            command = [os.path.abspath(target), f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048",
                       "-artifact_prefix=" + os.path.abspath(os.path.dirname(target)) + "/" + name + "-",
                       os.path.join(found, "corpus")] + ([known] if os.path.isdir(known) else [])
            if call(command, log, seconds + 60) == 0:
                result.passed += 1
            else:
                result.failed += 1
                result.failures.append((f"{name} (the input of the failure is in its folder)", tail(log)))

    def run_guests(self, suite, deadline, result):
        """Runs the checks of tests/vm, one line for each. Returns the number left out; None: no guest can run here."""
        records = os.path.join(suite.build, "meson-logs", "virtual-machine.json")
        log = os.path.join(suite.build, "meson-logs", "virtual-machine-run.txt")
        for path in (records, log):
            if os.path.exists(path):
                os.remove(path)
        command = ["/usr/bin/python3", "-B", "tests/vm/suite.py", "--build", suite.build, "--json", records]
        if deadline is not None:
            command += ["--seconds", str(max(1.0, left(deadline) - 10))]
        status = call(command, log, left(deadline))
        if status == 77:
            self.skip(suite, tail(log, 1).removeprefix("skipped: "))
            return None
        if not os.path.exists(records):
            self.fail(suite, "tests/vm/suite.py wrote no result", tail(log))
            return None
        left_out = 0
        with open(records, encoding="utf-8") as file:
            for record in json.load(file):
                print(f"  {record['outcome']:<8}{record['seconds']:6.1f} s  {record['name']:<36}{record['words']}")
                if record["outcome"] == "ok":
                    result.passed += 1
                elif record["outcome"] == "skipped":
                    result.skipped += 1
                elif record["outcome"] == "not run":
                    left_out += 1
                else:
                    result.failed += 1
                    failure = (record["name"], record["output"])
                    result.failures.append(failure)
                    if not record["name"].endswith(": the guest"):
                        result.to_rerun.append((record["name"], record["words"], failure))
        self.rerun(suite, result, lambda name, seconds: self.guest_alone(suite, name, records, log, seconds))
        return left_out

    @staticmethod
    def guest_alone(suite, name, records, log, seconds):
        """Whether the check passes alone in a guest."""
        setup, check = name.split(": ", 1)
        os.remove(records)
        call(["/usr/bin/python3", "-B", "tests/vm/suite.py", "--build", suite.build, "--json", records, "--setup", setup,
              "--seconds", str(max(1.0, seconds - 10)), check], log, seconds)
        if not os.path.exists(records):
            return False
        with open(records, encoding="utf-8") as file:
            outcomes = [record["outcome"] for record in json.load(file)]
        return bool(outcomes) and all(outcome == "ok" for outcome in outcomes)

    # --- the whole run ---

    def chosen(self):
        if self.only:
            unknown = [name for name in self.only if name not in [suite.name for suite in SUITES]]
            if unknown:
                sys.exit(f"tools/test: no suite is called {unknown[0]}; there are "
                         + ", ".join(suite.name for suite in SUITES))
            return [suite for suite in SUITES if suite.name in self.only]
        return SUITES[:1] if self.mode == "quick" else SUITES

    def all(self):
        for suite in self.chosen():
            if self.only or not suite.later or not self.is_empty(suite):
                self.run(suite)
        for name, output in self.total.failures:
            print(f"\n--- {name}\n{output}")
        if self.mode != "quick" and "build-test" in self.ready:
            by_hand = [test["name"] for test in introspect("build-test", "tests") if first_suite(test) is None]
            if by_hand:
                print(f"{'long:':<17}skipped: {len(by_hand)} long tests run by hand (meson test -C build-test --suite long)")
                self.total.skipped += len(by_hand)
        if self.mode == "ci" and self.must_missing:
            print(f"FAILED: {', '.join(self.must_missing)} must run in continuous integration and did not")
            self.total.failed += len(self.must_missing)
        for name, output in self.total.failures:
            print(f"failed: {name}: {reason_line(output, 'no output')}")
        for name, (suite, reason) in self.unstable.items():
            print(f"unstable: {name} failed once and passed alone: {reason} (suite {suite})")
        if len(self.unstable) > UNSTABLE_LIMIT:
            print(f"FAILED: {len(self.unstable)} tests are unstable, more than {UNSTABLE_LIMIT}")
            self.total.failed += 1
        print(f"{self.total.skipped} skipped")
        print(f"{self.total.passed} passed, {self.total.failed} failed", flush=True)
        return 1 if self.total.failed else 0


def left(deadline):
    return None if deadline is None else max(1.0, deadline - time.monotonic())


assert sum(suite.minutes for suite in SUITES) <= BUDGET_MINUTES

if __name__ == "__main__":
    sys.exit(Run(sys.argv[1], [name for name in sys.argv[2].split(",") if name]).all())
