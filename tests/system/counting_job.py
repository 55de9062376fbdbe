"""counting_job.py - jobs whose workers push whole numbers and check each result (tests/client/counting.c)."""

import json
import os
import re
import signal
import subprocess

import harness

COUNTING = os.path.join(harness.BUILD, "tests", "client", "counting")
CLOCKS = os.path.join(harness.BUILD, "tests", "client", "counting_clocks")
END = re.compile(r"^steps (\d+) wrong (\d+) longest (\d+) ms$", re.MULTILINE)


class CountingTest(harness.JobTest):
    def steps(self, group, worker="worker0"):
        """The last step that the worker has printed."""
        return max([int(n) for n in re.findall(r"^step (\d+)$", self.log(group, worker), re.MULTILINE)] or [0])

    def weft(self, group, *words):
        return subprocess.run([harness.PROGRAMS.weft, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
                              env={**os.environ, **self.job_variables(group)})

    def status(self, group):
        """As `weft status --json` prints it; {} while there is no answer."""
        done = self.weft(group, "status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def slots(self, group):
        return self.status(group).get("slots", {})

    def shards(self, group):
        """Shards of the status by number; {} while there is no answer."""
        return {row["index"]: row for row in self.status(group).get("members", []) if row["role"] == "shard"}

    def join(self, group, number, environment):
        """Starts a further shard; waits until it leads slots."""
        job = self.job_variables(group)
        group.start(f"shard{number}", [harness.PROGRAMS.weftd, "--coordinator", job["WEFT_COORDINATOR"], "--join"], {**environment, **job})
        self.wait_for("slots at the further shard", lambda: self.shards(group).get(number, {}).get("weights_bytes", 0) > 0, group, 60)

    def drop(self, group, name):
        """A process that will end before the job."""
        process = dict(group.processes)[name]
        group.processes = [(other, process) for other, process in group.processes if other != name]
        return process

    def drain(self, group, number):
        """The shard leaves with status 0 when its slots are on the others; each of them has a copy."""
        shard = self.drop(group, f"shard{number}")
        os.kill(shard.pid, signal.SIGTERM)
        self.assertIsNotNone(harness.ends([(f"shard{number}", shard)], 60)[f"shard{number}"], self.log(group, f"shard{number}"))
        self.assertEqual(shard.returncode, 0, self.log(group, f"shard{number}"))
        self.assertEqual(self.slots(group)["without_copy"], 0)

    def end(self, group, workers, stop="stop", seconds=30):
        """Ends the job in order by the file `stop`; no rank has a wrong number. Returns the longest step of each, in ms."""
        longest_ms = []
        open(self.path(stop), "w").close()
        group.wait(seconds)
        for rank in range(workers):
            end = END.search(self.log(group, f"worker{rank}"))
            self.assertIsNotNone(end, self.log(group, f"worker{rank}"))
            self.assertEqual(end[2], "0", "wrong numbers")
            longest_ms.append(int(end[3]))
            print(f"rank {rank}: {end[1]} steps, longest {end[3]} ms", end=" ")
        return longest_ms
