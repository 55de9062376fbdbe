"""test_operations_table.py - tools/bench/peers/operations.py measures the contenders of a size directly after each other, compares within rounds, and
merges parts measured at different times into one table and its plots; operations of Gloo on vectors shorter than the ranks;
SIGTERM removes the namespace."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
import unittest

BUILD = os.environ["WEFT_BUILD"]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PEERS = os.path.join(ROOT, "tools", "bench", "peers")


def sample(operation, ranks, contender, size, time_us):
    return json.dumps({"operation": operation, "ranks": ranks, "contender": contender, "bytes": size, "time_us": time_us})


sys.path.insert(0, os.path.join(ROOT, "tools", "dev"))
import netns  # noqa: E402


def namespaces():
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()


class Vector:
    """The attributes of a tensor that the choice of an operation reads."""

    def __init__(self, count):
        self.count = count

    def chunk(self, parts):
        return [Vector(1) for _ in range(min(parts, self.count))]

    def clone(self):
        return Vector(self.count)


def load(name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(PEERS, f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class OperationsTable(unittest.TestCase):
    def test_contenders_for_a_size_are_measured_in_turn(self):
        operations, asked = load("operations"), []

        class Contest(operations.Contest):
            def contenders(self, operation):
                def measure(name):
                    return lambda sizes: asked.append((name, sizes)) or {size: 10 * len(asked) + size for size in sizes}
                return {name: measure(name) for name in ("weft", "MPICH", "Gloo")}

        contest = Contest(types.SimpleNamespace(build=BUILD, rounds=2), 2, [])
        times = contest.run("all_reduce", [1, 2], operations.Samples(None))
        first = [(name, [size]) for size in (1, 2) for name in ("weft", "MPICH", "Gloo")]
        self.assertEqual(asked, first + [step for step in first if step[0] != "Gloo"])
        self.assertEqual(times, {"weft": {1: [11, 71], 2: [42, 92]}, "MPICH": {1: [21, 81], 2: [52, 102]}, "Gloo": {1: [31], 2: [62]}})

    def test_a_ratio_is_the_median_of_the_rounds(self):
        operations = load("operations")
        times = {"weft": {8: [1, 10, 2, 20, 9]}, "MPICH": {8: [2, 20, 4, 40, 1]}, "Gloo": {8: [45]}}  # its speed changes with each round
        self.assertEqual(operations.best_over_weft(times, 8), 2)
        self.assertEqual(operations.best_over_weft({name: times[name] for name in ("weft", "Gloo")}, 8), 5)  # rounds that do not pair: medians
        self.assertIsNone(operations.best_over_weft(times, 16))

    def test_parts_make_one_table(self):
        with tempfile.TemporaryDirectory() as folder:
            samples, plot = os.path.join(folder, "samples"), os.path.join(folder, "all.svg")
            with open(samples, "w", encoding="ascii") as file:
                for ranks in (2, 4):
                    for size in (8, 1048576):
                        for times in ((1, 6, 20), (9, 8, 10), (2, 4, 30)):  # medians 2, 6 and 20
                            for contender, time in zip(("weft", "weft, malloc", "MPICH"), times):
                                file.write(sample("all_reduce", ranks, contender, size, time * ranks) + "\n")
            done = subprocess.run([sys.executable, os.path.join(PEERS, "operations.py"), "--build", BUILD, "--rounds", "0", "--no-gloo", "--ops", "all_reduce",
                                   "--sizes", "8,1M", "--samples", samples, "--markdown", "--plot", plot], capture_output=True, text=True, timeout=100, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            for ranks in (2, 4):
                rows = [line for line in done.stdout.split(f"\n{ranks} ranks")[1].splitlines() if line.startswith("| all_reduce")][:2]
                for row, size in zip(rows, ("8 B", "1 MiB")):
                    cells = row.split(" | ")
                    self.assertEqual(cells[:3], [f"| all_reduce, {size}", f"{2 * ranks:.2f}", f"{6 * ranks:.2f}"])
                    self.assertEqual(cells[-2:], [f"{20 * ranks:.2f}", "15.00 |"])  # of 20, 10 / 9 and 15
            self.assertFalse(os.path.exists(plot))
            for ranks in (2, 4):
                with open(os.path.join(folder, f"all-{ranks}.svg"), encoding="utf-8") as file:
                    self.assertIn(f"{ranks} ranks", file.read())

    def test_a_terminated_one_leaves_no_namespace(self):
        if reason := netns.allowed():
            self.skipTest(reason)
        words = [sys.executable, os.path.join(PEERS, "operations.py"), "--build", BUILD, "--tcp", "tcp", "--ops", "all_reduce", "-n", "2", "--sizes", "8", "--rounds", "1000000", "--no-gloo"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=dict(os.environ, PYTHONUNBUFFERED="1")) as process:
            while (line := process.stdout.readline()) and "private namespace" not in line:
                pass
            self.assertIn(f"weft-loopback-{process.pid}", namespaces())
            process.terminate()
            process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + 15)
        self.assertNotIn(f"weft-loopback-{process.pid}", namespaces())

    def test_gloo_has_vectors_shorter_than_the_ranks(self):
        gloo = load("gloo_operations")

        class Dist:
            barrier = None
        for rank in range(4):
            self.assertIsNotNone(gloo.operation("all_reduce", Dist, Vector(2), Vector(2), rank, 4))


if __name__ == "__main__":
    unittest.main(verbosity=2)
