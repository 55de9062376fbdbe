"""test_sim.py - `weft sim`: the library's plans on a simulated cluster: right data, the formula's time, wrong usage said."""

import json
import os
import subprocess
import tempfile
import unittest

BUILD = os.environ["WEFT_BUILD"]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def weft_sim(*words):
    return subprocess.run([os.path.join(BUILD, "tools", "weft"), "sim", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=50)


class Sim(unittest.TestCase):
    def run_json(self, *words):
        done = weft_sim(*words, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_every_operation_is_right(self):
        for operation in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"):
            for ranks in ("1", "7", "16"):
                found = self.run_json(operation, "-n", ranks, "-b", "10000", "--root", "0")
                self.assertTrue(found["data_checked"])
                self.assertEqual(found["wrong"], 0)
                self.assertEqual(found["ranks"], int(ranks))

    def test_ring_takes_what_the_formula_says(self):
        found = self.run_json("-n", "64", "-b", "64M", "-p", "ring")
        self.assertFalse(found["data_checked"])
        self.assertEqual(found["plan"], "ring")
        self.assertLess(abs(found["virtual_ns"] / 1e9 / found["formula_s"] - 1), 0.02)
        payload = 2 * (found["ranks"] - 1) * found["bytes"]
        self.assertGreaterEqual(found["links"][0]["bytes"], payload)
        self.assertLess(found["links"][0]["bytes"], payload * 1.01)
        self.assertEqual(found, {**self.run_json("-n", "64", "-b", "64M", "-p", "ring"), "run_s": found["run_s"], "set_up_s": found["set_up_s"],
                                 "memory_bytes": found["memory_bytes"]})

    def test_a_few_of_a_ring_take_as_long_as_all(self):
        """Ranks that are alike run once: the same time and the same bytes as with each of them run, to the last."""
        for operation, ranks, size in (("all_reduce", "96", "6M"), ("reduce_scatter", "64", "1M"), ("all_gather", "36", "300M")):
            few = self.run_json(operation, "-n", ranks, "-b", size, "-p", "ring", "--timing-only")
            every = self.run_json(operation, "-n", ranks, "-b", size, "-p", "ring", "--timing-only", "--every-rank")
            self.assertLess(few["simulated_ranks"], 20)
            self.assertEqual(every["simulated_ranks"], int(ranks))
            for what in ("virtual_ns", "sent_bytes", "links"):
                self.assertEqual(few[what], every[what], operation)
        uneven = self.run_json("-n", "64", "-b", "65540", "-p", "ring", "--timing-only")
        self.assertEqual(uneven["simulated_ranks"], 64)
        thousands = self.run_json("-n", "4096", "-b", "64M", "-p", "ring")
        self.assertLess(abs(thousands["virtual_ns"] / 1e9 / thousands["formula_s"] - 1), 0.02)

    def test_formulas_are_near_the_simulation(self):
        """The library's choice is made by them: none is off by half, and the chosen plan is nearly the best of the simulated."""
        for ranks in ("5", "64"):
            for size in ("1K", "1M"):
                found = {plan: self.run_json("-n", ranks, "-b", size, "-p", plan, "--timing-only")
                         for plan in ("direct", "ring", "doubling", "halving", "double_tree")}
                for plan, one in found.items():
                    self.assertLess(one["virtual_ns"] / 1e9, 1.5 * one["formula_s"], (plan, ranks, size))
                    self.assertGreater(one["virtual_ns"] / 1e9, one["formula_s"] / 1.7, (plan, ranks, size))
                best = min(one["virtual_ns"] for one in found.values())
                self.assertLess(found[found["ring"]["auto"]]["virtual_ns"], 1.5 * best, (ranks, size))

    def test_pieces_are_not_sent_to_thousands_one_by_one(self):
        """What the window of an operation cannot hold costs time: log2(p) messages win, and the formula says so."""
        for operation, plans in (("all_gather", ("direct", "bruck", "ring")), ("reduce_scatter", ("direct", "pat", "ring"))):
            found = {plan: self.run_json(operation, "-n", "128", "-b", "1K", "-p", plan, "--timing-only") for plan in plans}
            best = min(one["virtual_ns"] for one in found.values())
            self.assertLessEqual(found[found["ring"]["auto"]]["virtual_ns"], 1.3 * best, operation)
            self.assertGreater(found["direct"]["virtual_ns"], 1.5 * best, operation)

    def test_hosts_send_a_byte_once(self):
        """Several ranks a host, also unequal numbers: pieces by the hierarchy need the time of the host's link, and auto takes it."""
        with tempfile.NamedTemporaryFile("w") as topology:
            topology.write("[host node]\ncount = 8\n[switch core]\n[link access]\nfrom = node\nto = core\nrate = 100Gbit\nlatency = 2us\n")
            topology.flush()
            for ranks in (48, 45):
                for operation in ("reduce_scatter", "all_gather"):
                    words = (operation, "-n", str(ranks), "-b", "8M", "-t", topology.name, "--timing-only")
                    chosen, direct, ring = (self.run_json(*words, "-p", plan) for plan in ("auto", "direct", "ring"))
                    self.assertEqual(chosen["plan"], "hierarchy")
                    self.assertLess(2 * chosen["virtual_ns"], direct["virtual_ns"])
                    self.assertLess(chosen["virtual_ns"], 1.3 * ring["virtual_ns"])
                    self.assertLess(chosen["virtual_ns"] / 1e9, 1.5 * chosen["formula_s"])
                    self.assertGreater(chosen["virtual_ns"] / 1e9, chosen["formula_s"] / 1.5)
                    words = (operation, "-n", str(ranks), "-b", "128K", "-t", topology.name, "--timing-only")
                    short, ring = self.run_json(*words, "-p", "hierarchy"), self.run_json(*words, "-p", "ring")
                    self.assertLess(1.2 * short["virtual_ns"], ring["virtual_ns"])

    def test_ring_goes_host_by_host(self):
        """Ranks that are dealt out to hosts in turn take no longer than those side by side."""
        with tempfile.NamedTemporaryFile("w") as topology:
            topology.write("[host node]\ncount = 4\n[switch core]\n[link access]\nfrom = node\nto = core\nrate = 100Gbit\nlatency = 2us\n")
            topology.flush()
            for operation in ("all_reduce", "reduce_scatter", "all_gather"):
                words = (operation, "-n", "32", "-b", "4M", "-t", topology.name, "-p", "ring", "--timing-only")
                beside, in_turn = self.run_json(*words), self.run_json(*words, "--in-turn")
                self.assertLess(in_turn["virtual_ns"], 1.05 * beside["virtual_ns"])
            self.assertEqual(self.run_json("all_reduce", "-n", "30", "-b", "40000", "-t", topology.name, "-p", "ring", "--in-turn")["wrong"], 0)

    def test_links_from_a_table(self):
        with tempfile.NamedTemporaryFile("w") as table:
            table.write("weft-links 1\nhost 0000000000000007 a\nmachine 0 640 125 90 0 0\nlink 0 0 works 40000 1000000000 session|made up\nend 3\n")
            table.flush()
            found = self.run_json("-n", "8", "-b", "8M", "-p", "ring", "--timing-only", "--links", table.name)
        self.assertLess(abs(found["virtual_ns"] / (14 * (3 * 40e3 + 2**20)) - 1), 0.02)
        done = weft_sim("--links", "/nonexistent")
        self.assertEqual(done.returncode, 1)
        self.assertIn("--links /nonexistent", done.stderr)
        self.assertEqual(weft_sim("--beside", "tcp", "-n", "65").returncode, 2)

    def test_topologies(self):
        folder = os.path.join(ROOT, "examples", "topologies")
        for name, ranks in (("fat-tree.ini", "64"), ("rails.ini", "32"), ("wide-area.ini", "16")):
            found = self.run_json("-n", ranks, "-b", "4M", "-p", "ring", "-t", os.path.join(folder, name))
            self.assertGreater(len(found["links"]), 0)
            self.assertGreater(sum(link["bytes"] for link in found["links"]), 0)
        text = weft_sim("-n", "8", "-b", "32K", "-t", os.path.join(folder, "fat-tree.ini"))
        self.assertIn("every element of every rank is right", text.stdout)
        self.assertIn("million a second", text.stdout)

    def test_wrong_usage(self):
        for words, part in ((["-n", "0"], "--ranks"), (["all_shuffle"], "there is no operation"), (["-p", "zigzag"], "there is no plan"),
                            (["-b", "x"], "no size"), (["--root", "9", "-n", "4"], "root 9 of 4"), (["--what"], "--what")):
            done = weft_sim(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(part, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
        done = weft_sim("-t", "/nonexistent.ini")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nonexistent.ini", done.stderr)
        self.assertEqual(weft_sim("--help").returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
