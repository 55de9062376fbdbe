"""test_missing.py - while a job waits for a member, weft_init, weftd and `weft run` name it.

The missing member starts only after the test has read the reports: no test depends on a time."""

import os
import socket
import subprocess
import time

import harness

EXAMPLE = os.path.join(harness.BUILD, "examples", "01_all_reduce")
GATED = 'while [ "$WEFT_RANK" = 1 ] && [ ! -e "$GATE" ]; do sleep 0.05; done; exec "$0"'
SECONDS = 60


class Missing(harness.JobTest):
    def await_text(self, path, wanted):
        """The first line of the file that contains `wanted`; fails after SECONDS."""
        limit = time.monotonic() + SECONDS
        text = ""
        while time.monotonic() < limit:
            if os.path.exists(path):
                with open(path, errors="replace") as file:
                    text = file.read()
            for line in text.splitlines():
                if wanted in line:
                    return line
            time.sleep(0.05)
        self.fail(f"{path} does not contain '{wanted}':\n{text}")

    def start(self, shards):
        """`weft run` of two workers, of which rank 1 waits for the gate; its output goes to a file."""
        gate, output, logs = self.path("gate"), self.path("output"), self.path("logs")
        command = [harness.PROGRAMS.weft, "run", "-s", str(shards), "-n", "2", "--log-dir", logs, "--", "sh", "-c", GATED, EXAMPLE]
        with open(output, "w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "GATE": gate}, start_new_session=True)
        self.addCleanup(process.kill)
        return process, gate, output, logs

    def finish(self, process, gate, output):
        with open(gate, "w"):
            pass
        self.assertEqual(process.wait(timeout=SECONDS), 0)
        with open(output, errors="replace") as file:
            return file.read()

    def test_a_rank_without_shards(self):
        process, gate, output, logs = self.start(0)
        self.await_text(output, "to begin: rank 1 has not joined")  # the coordinator in weft run
        line = self.await_text(os.path.join(logs, "rank0.log"), "rank 0 has waited")
        self.assertIn("in weft_init: rank 1 has not joined", line)
        text = self.finish(process, gate, output)
        self.assertIn("on every worker", text)

    def test_a_rank_with_shards(self):
        process, gate, output, logs = self.start(2)
        self.await_text(output, "weft run: the job waits to begin: rank 1 has not joined")
        self.await_text(os.path.join(logs, "rank0.log"), "in weft_init: rank 1 has not joined")
        self.await_text(os.path.join(logs, "shard0.log"), "to begin: rank 1 has not joined")  # the coordinator
        self.await_text(os.path.join(logs, "shard1.log"), "shard 1 waits for the job to begin: rank 1 has not joined")
        self.finish(process, gate, output)

    def test_a_shard(self):
        group = self.group()
        ports = self.path("ports")
        weftd = harness.PROGRAMS.weftd
        group.start("shard0", [weftd, "--job", "demo", "--index", "0", "--workers", "1", "--shards", "2", "--port-file", ports])
        coordinator = self.await_text(ports, "coordinator=")[len("coordinator="):]
        group.start("worker0", [EXAMPLE], {"WEFT_JOB": "demo", "WEFT_COORDINATOR": coordinator, "WEFT_RANK": "0"})
        self.await_text(group.log_path("shard0"), "to begin: shard 1 has not joined")
        self.await_text(group.log_path("worker0"), "rank 0 has waited")
        line = self.await_text(group.log_path("worker0"), "in weft_init: shard 1 has not joined")
        self.assertIn(f"(coordinator at {coordinator})", line)
        # the first line of a weftd, at the default log level
        self.await_text(group.log_path("shard0"), f"coordinator of job demo at {coordinator}, for 1 worker and 2 shards")
        group.start("shard1", [weftd, "--job", "demo", "--index", "1", "--coordinator", coordinator])
        self.await_text(group.log_path("shard1"), f"shard of job demo on 127.0.0.1, coordinator at {coordinator}")
        ended = harness.ends(group.processes, SECONDS)
        self.assertNotIn(None, ended.values(), ended)
        self.assertEqual([process.returncode for _, process in group.processes], [0, 0, 0])

    def test_a_listener_that_does_not_answer(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            where = f"127.0.0.1:{listener.getsockname()[1]}"
            done = subprocess.run([EXAMPLE], env={**os.environ, "WEFT_JOB": "demo", "WEFT_COORDINATOR": where, "WEFT_RANK": "0",
                                                  "WEFT_DEADLINE_MS": "3000"}, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
            status = subprocess.run([harness.PROGRAMS.weft, "status", "--timeout", "1", where], stderr=subprocess.PIPE, text=True, timeout=SECONDS)
            silent = f"the process at {where} accepts connections and does not answer"
        self.assertEqual((done.returncode, status.returncode), (1, 1))
        self.assertIn(silent, done.stderr)
        self.assertIn(f"weft status: {silent}: it is stopped, or that port is no control port", status.stderr)


if __name__ == "__main__":
    harness.main()
