"""test_operations.py - every operation between real processes; plans with one tree of sums give equal bits."""

import os
import re

import harness

WORKER = os.path.join(harness.BUILD, "tests", "client", "operations")
SHM, TCP = {"WEFT_TRANSPORT_LANES": "shm"}, {"WEFT_TRANSPORT_LANES": "tcp"}


class Operations(harness.JobTest):
    def bits(self, workers, name, **environment):
        """The one hash that all ranks print."""
        done = self.run_job(0, workers, [WORKER], name, environment=environment)
        self.assertEqual(done.returncode, 0, done.stdout)
        found = set(re.findall(r"bits ([0-9a-f]{16})", done.stdout))
        self.assertEqual(len(found), 1, done.stdout)
        return found.pop(), done.stdout

    def test_every_operation(self):
        for workers in (1, 2, 3, 5):
            _, text = self.bits(workers, f"all-{workers}")
            self.assertRegex(text, r"all_reduce 4000 B, \d ranks: \w+; direct \d")

    def test_one_tree(self):
        """Reproducible plans: equal bits for every plan, chunk and transport. The bits of a ring differ from them, but are always the same."""
        for workers in (3, 4):
            seen = {}
            for plan in ("direct", "doubling", "halving"):
                for chunk in ("4096", "1048576"):
                    for lanes in (SHM, TCP):
                        name = f"{plan}-{chunk}-{lanes['WEFT_TRANSPORT_LANES']}-{workers}"
                        seen[name], text = self.bits(workers, name, WEFT_PLAN_ALL_REDUCE=plan, WEFT_COLLECTIVE_CHUNK_BYTES=chunk, **lanes)
                        self.assertIn(f"{plan} (forced)", text)
            self.assertEqual(len(set(seen.values())), 1, seen)
            rings = {self.bits(workers, f"ring-{i}-{workers}", WEFT_PLAN_ALL_REDUCE="ring", **SHM)[0] for i in range(2)}
            self.assertEqual(len(rings), 1)
            self.assertNotIn(rings.pop(), seen.values())

    def test_plans_for_short_pieces(self):
        """Every operation by the plans of few messages, and every reduce_scatter and all_gather by PAT, chunk by chunk, too."""
        for workers in (2, 3, 5):
            for name, chunk, plans in (
                ("trees", "1048576", {"ALL_TO_ALL": "bruck", "ALL_GATHER": "bruck", "GATHER": "binomial", "SCATTER": "binomial"}),
                ("pat", "65536", {"REDUCE_SCATTER": "pat", "ALL_GATHER": "pat", "BROADCAST": "binomial", "REDUCE": "binomial"}),
                ("pat-chunks", "4096", {"REDUCE_SCATTER": "pat", "ALL_GATHER": "pat"}),
            ):
                forced = {"WEFT_PLAN_" + kind: plan for kind, plan in plans.items()}
                self.bits(workers, f"{name}-{workers}", WEFT_COLLECTIVE_CHUNK_BYTES=chunk, **forced, **(SHM if workers % 2 else TCP))

    def test_hosts(self):
        """Ranks configured as different hosts, with two or unequal numbers of ranks: the hierarchy, and its bits if hosts are subtrees of T."""
        worker = ["sh", "-c", 'export WEFT_CLIENT_HOST=host$((WEFT_RANK / $RANKS_PER_HOST)); exec "$0"', WORKER]
        forced = {"WEFT_PLAN_ALL_REDUCE": "hierarchy", "WEFT_PLAN_BROADCAST": "hierarchy", **TCP}
        for workers, per_host in ((4, 2), (5, 2), (5, 3)):
            seen = {}
            for plan in ("hierarchy", "direct"):
                for chunk in ("4096", "1048576"):
                    pieces = {"WEFT_PLAN_REDUCE_SCATTER": plan, "WEFT_PLAN_ALL_GATHER": plan}
                    environment = {**forced, **pieces, "WEFT_PLAN_ALL_REDUCE": plan, "RANKS_PER_HOST": str(per_host), "WEFT_COLLECTIVE_CHUNK_BYTES": chunk}
                    done = self.run_job(0, workers, worker, f"hosts-{workers}-{per_host}-{plan}-{chunk}", environment=environment)
                    self.assertEqual(done.returncode, 0, done.stdout)
                    found = re.findall(r"bits ([0-9a-f]{16})", done.stdout), re.findall(r"pieces ([0-9a-f]{16})", done.stdout)
                    self.assertEqual([len(set(bits)) for bits in found], [1, 1], done.stdout)
                    self.assertIn(f"{plan} (forced)", done.stdout)
                    self.assertIn(f"hosts of up to {per_host} ranks", done.stdout)
                    seen[plan, chunk] = found[0][0], found[1][0]
            same = {name: bits for name, bits in seen.items() if name[0] == "hierarchy" or per_host == 2}
            self.assertEqual(len(set(same.values())), 1, seen)

    def test_measured_links(self):
        """A link table with two sites, hosts 0, 2 and 1, 3, and a slow last host: all ranks use the same ring order, and the bits of T do not change."""
        path, hosts = self.path("links"), 5
        with open(path, "w") as file:
            rows = [f"host {h + 1:016x} host{h}" for h in range(hosts)]
            for a in range(hosts):
                for b in range(hosts):
                    rate = 100e6 if hosts - 1 in (a, b) else 1000e6 if a % 2 == b % 2 else 200e6
                    rows += [f"link {a} {b} works 20000 {int(rate)} session|made up"] if a != b else []
            file.write("weft-links 1\n" + "\n".join(rows) + f"\nend {len(rows)}\n")
        worker = ["sh", "-c", 'export WEFT_CLIENT_HOST=host$WEFT_RANK; exec "$0"', WORKER]
        seen = {}
        for name, table, plan in (("plain", "", "direct"), ("slices", path, "direct"), ("ring", "", "ring"), ("round", path, "ring"),
                                  ("round-again", path, "ring"), ("tree", path, "double_tree"), ("auto", path, "auto")):
            environment = {"WEFT_COLLECTIVE_LINKS": table, "WEFT_PLAN_ALL_REDUCE": plan, "WEFT_PLAN_REDUCE": "chain", "WEFT_PLAN_BROADCAST": "chain", **TCP}
            done = self.run_job(0, hosts, worker, f"links-{name}", environment=environment)
            self.assertEqual(done.returncode, 0, done.stdout)
            found = set(re.findall(r"bits ([0-9a-f]{16})", done.stdout))
            self.assertEqual(len(found), 1, done.stdout)
            seen[name] = found.pop()
            (self.assertIn if table else self.assertNotIn)("by measured links: the round", done.stdout)
        self.assertEqual(seen["plain"], seen["slices"])
        self.assertEqual(seen["round"], seen["round-again"])
        self.assertNotEqual(seen["round"], seen["ring"])

    def test_retune(self):
        """Retuning tries plans and keeps the fastest; the next job begins with the file of rank 0; a damaged file gives one log line."""
        kept = self.path("plans")
        on_hosts = 'export WEFT_CLIENT_HOST=host$((WEFT_RANK / 2)); '
        worker = ["sh", "-c", on_hosts + 'exec "$0" $REPEAT', WORKER]
        environment = {"WEFT_COLLECTIVE_RETUNE": "any", "WEFT_COLLECTIVE_PLANS": kept, "REPEAT": "240", "WEFT_TRANSPORT_BACKEND": "ucx", **TCP}
        for name in ("first", "second"):
            done = self.run_job(0, 4, worker, f"retune-{name}", environment=environment)
            self.assertEqual(done.returncode, 0, done.stdout)
            with open(kept) as file:
                self.assertRegex(file.read(), r"\Aweft-plans 1\nranks 4 hosts 2\n(cell .*\n)*cell all_reduce 14 0 \w+ \d+\n(cell .*\n)*end \d+\n\Z")
        with open(kept, "w") as file:
            file.write("weft-plans 1\nranks 4 hosts 2\ncell all_reduce 14 0 bruck 7\nend 1\n")
        done = self.run_job(0, 4, worker, "retune-broken", environment=environment)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("is not used: line 3: not a cell of a table of plans", done.stdout)
        one_off = ["sh", "-c", on_hosts + '[ "$WEFT_RANK" = 1 ] && export WEFT_COLLECTIVE_RETUNE=off; exec "$0" 60', WORKER]
        done = self.run_job(0, 3, one_off, "retune-one-off", environment={**environment, "WEFT_COLLECTIVE_PLANS": ""})
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_wrong_plan_is_refused(self):
        done = self.run_job(0, 2, [WORKER], "wrong", environment={"WEFT_PLAN_REDUCE": "ring"})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("WEFT_PLAN_REDUCE: plan ring has no reduce", done.stdout)


if __name__ == "__main__":
    harness.main()
