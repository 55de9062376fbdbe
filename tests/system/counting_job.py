"""counting_job.py - jobs whose workers push whole numbers and check each result (tests/client/counting.c)."""

import os
import re

import harness

COUNTING = os.path.join(harness.BUILD, "tests", "client", "counting")
END = re.compile(r"^steps (\d+) wrong (\d+) longest (\d+) ms$", re.MULTILINE)


class CountingTest(harness.JobTest):
    def steps(self, group, worker="worker0"):
        """The last step that the worker has printed."""
        return max([int(n) for n in re.findall(r"^step (\d+)$", self.log(group, worker), re.MULTILINE)] or [0])

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
