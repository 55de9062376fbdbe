"""test_observe.py - what an operator sees of a running job: JSON logs, weft top, the bundle of weft support."""

import json
import os
import pty
import re
import select
import subprocess
import tarfile
import time

import harness
import jobs

SECRET = "ab" * 16
REPORT_PERIOD = "200ms"


class ObserveTest(harness.JobTest):
    def start(self, **environment):
        """A job of one shard and two workers, which trains until the test ends. Sets what the commands need."""
        if not os.path.isdir(harness.DATA):
            self.skipTest(f"{harness.DATA}, the data of the trainer, is not here")
        self.processes = self.group("observed")
        words = [harness.PROGRAMS.trainer, "--mode", "server", "--hidden", "64", "--epochs", "10000"]
        jobs.start_by_hand(harness.PROGRAMS, self.processes, 1, 2, words, environment={
            "WEFT_SECRET": SECRET, "WEFT_CLIENT_REPORT_PERIOD": REPORT_PERIOD,
            "WEFT_RECORDER_DIRECTORY": self.processes.log_directory, **environment})
        self.environment = {**os.environ, **self.job_variables(self.processes), "WEFT_SECRET": SECRET}

    def weft(self, *words, expect=0):
        done = subprocess.run([harness.PROGRAMS.weft, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=100, env=self.environment)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done

    def training(self):
        """The members of weft top --json once all of them have reported work; else None."""
        members = json.loads(self.weft("top", "--json").stdout)["members"]
        busy = [member.get("steps_per_second", member.get("rounds_per_second")) for member in members]
        return members if len(busy) == 3 and all(busy) else None

    def lines(self, name):
        """JSON objects of a log; the trainer writes lines of its own between them."""
        return [json.loads(line) for line in self.log(self.processes, name).splitlines() if line.startswith("{")]

    def on_terminal(self, words, send, seconds=30):
        """Runs weft top on a pseudo-terminal; once it has painted twice, calls send(pid, terminal). Returns the exit
        status and the output."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(harness.PROGRAMS.weft, [harness.PROGRAMS.weft, "top", *words], self.environment)
        output, sent, deadline = b"", False, time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.2)[0]:
                try:
                    data = os.read(terminal, 65536)
                except OSError:  # the other end is closed
                    break
                if not data:
                    break
                output += data
            if not sent and output.count(b"\033[2J") >= 2:
                send(pid, terminal)
                sent = True
        os.close(terminal)
        self.assertTrue(sent, output)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output.decode()

    def test_top(self):
        self.start()
        members = self.wait_for("work of all members", self.training)
        self.assertEqual([(member["role"], member["index"]) for member in members],
                         [("worker", 0), ("worker", 1), ("shard", 0)])
        for worker in members[:2]:
            self.assertGreater(worker["exposed_ratio"], 0)
            self.assertLessEqual(worker["exposed_peers_ratio"], worker["exposed_ratio"])
            self.assertGreater(worker["sent_bytes_per_second"], 0)
        once = self.weft("top").stdout  # no terminal: one table
        self.assertRegex(once, r"^job observed is running for [\d.]+ s: 2 workers, 1 shards")
        self.assertRegex(once, r"\nrank 1 +ready .* ms +[\d.]+% ")
        self.assertNotIn("\033", once)

        words = ["--interval", "0.2"]
        status, output = self.on_terminal(words, lambda _, terminal: os.write(terminal, b"q"))
        self.assertEqual(status, 0, output)
        self.assertIn("rank 1", output)
        self.assertTrue(output.rstrip().endswith("\033[?1049l"), repr(output[-40:]))
        status, output = self.on_terminal(words, lambda _, terminal: os.write(terminal, b"\x03"))  # Ctrl-C
        self.assertEqual(status, 0, output)
        shard = dict(self.processes.processes)["shard0"]
        status, output = self.on_terminal(words, lambda *_: harness.kill(shard))
        self.assertEqual(status, 1, output)
        self.assertRegex(output, r"\033\[\?1049lweft top: the coordinator at \S+ is lost: [^\n]+\n$")
        self.assertRegex(self.weft("top", expect=1).stderr, r"(?m)^weft top: no process listens at [^\n]+\n\Z")

    def test_json_logs_and_support(self):
        self.start(WEFT_LOG_FORMAT="json", WEFT_LOG_LEVEL="info")
        self.wait_for("work of all members", self.training)
        logs = self.processes.log_directory
        with open(os.path.join(logs, "leak.log"), "w") as file:
            file.write(f"a line with {SECRET} in it\n")
            token = self.weft("status", "--http-token").stdout.strip()
            file.write(f"Authorization: Bearer {token}\n")
        archive = self.path("support.tar.gz")
        done = self.weft("support", "--logs", logs, "--output", archive, "--no-doctor")
        self.assertEqual(done.stdout, archive + "\n")
        with tarfile.open(archive) as tar:
            files = {os.path.basename(member.name): tar.extractfile(member).read().decode(errors="replace")
                     for member in tar.getmembers() if member.isfile()}
        for name, text in files.items():
            self.assertNotIn(SECRET, text, name)
            self.assertNotIn(token, text, name)
        self.assertRegex(files["metrics.txt"], r'(?m)^weft_worker_steps_total\{weft_job="observed",rank="1"\} [1-9]')
        self.assertIn("a line with (removed) in it", files["logs-leak.log"])
        self.assertIn("WEFT_SECRET=(removed)", files["environment.txt"])
        self.assertIn("client.deadline", files["configuration.txt"])
        self.assertIn("wire version", files["versions.txt"])
        self.assertEqual(json.loads(files["status.json"])["state"], "running")
        self.assertTrue(files["logs-shard0.log"])

        harness.kill(dict(self.processes.processes)["worker0"])
        harness.ends(self.processes.processes, 60)
        for name, role in (("shard0", "shard"), ("worker1", "rank")):
            rows = self.lines(name)
            self.assertGreater(len(rows), 1, name)
            for row in rows:
                self.assertLessEqual({"time", "level", "module", "text"}, set(row), name)
                self.assertRegex(row["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
                self.assertEqual(row["job"], "observed")
            self.assertEqual(rows[-1][role], 0 if role == "shard" else 1)
        # the flight record of the survivor is in the next bundle; a closed coordinator leaves a sentence
        self.weft("support", "--logs", logs, "--output", archive, "--no-doctor")
        with tarfile.open(archive) as tar:
            names = [os.path.basename(name) for name in tar.getnames()]
        self.assertTrue([name for name in names if re.match(r"logs-flight-.*\.json$", name)], names)
        self.assertIn("status.txt", names)

    def test_support_without_a_job(self):
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
        self.environment["WEFT_SECRET_FILE"] = self.path("secret")
        with open(self.path("secret"), "w") as file:  # readable by all: refused by a job, and still removed here
            file.write(SECRET + "\n")
        with open(self.path("a.log"), "w") as file:
            file.write(SECRET)
        os.chmod(self.path("secret"), 0o644)
        archive = self.path("support.tar.gz")
        self.weft("support", "--logs", self.directory, "--output", archive)
        with tarfile.open(archive) as tar:
            doctor = tar.extractfile("weft-support/doctor.txt").read().decode()
            self.assertEqual(tar.extractfile("weft-support/logs-a.log").read(), b"(removed)")
        self.assertIn("has mode 0644", doctor)
        self.assertIn("(exit status 2)", doctor)
        done = self.weft("support", "--logs", self.path("none"), "--output", archive, "--no-doctor", expect=1)
        self.assertRegex(done.stderr, r"^weft support: cannot read the folder \S+/none: ")
        os.chmod(self.path("secret"), 0o600)
        done = self.weft("support", "--output", archive, "--no-doctor", "127.0.0.1:1")
        self.assertRegex(done.stderr, r"^weft support: the status of the job is left out: no process listens at 127.0.0.1:1 ")


if __name__ == "__main__":
    harness.main()
