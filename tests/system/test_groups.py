"""test_groups.py - memory of very many groups, in bytes: of meshes dp x tp x pp x ep with all their sets of axes, unused and used, and of
groups that are created and freed, by all ranks or by their members alone. Real processes; no times."""

import os
import re

import harness

WORKER = os.path.join(harness.BUILD, "tests", "client", "many_groups")
MIB = 1 << 20


class Groups(harness.JobTest):
    def figures(self, workers, words, transport):
        """Figures of each rank: (phase, groups) -> (Pss, bytes of the allocator, descriptors)."""
        name = "-".join([transport, str(workers), *words])
        done = self.run_job(0, workers, [WORKER, *words], name, seconds=180, environment={"WEFT_TRANSPORT_BACKEND": transport})
        self.assertEqual(done.returncode, 0, done.stdout)
        ranks = []
        for rank in range(workers):
            with open(os.path.join(self.path(name), f"rank{rank}.log"), encoding="utf-8") as file:
                lines = re.findall(r"^(\w+) (\d+) (\d+) (\d+) (\d+)$", file.read(), re.MULTILINE)
            ranks.append({(what, int(groups)): tuple(map(int, rest)) for what, groups, *rest in lines})
        return ranks

    def hold(self, workers, groups, how, transport):
        """The maximum over the ranks of Pss, and of the Pss and allocator bytes that the groups add."""
        ranks = self.figures(workers, ("hold", str(groups), how), transport)
        held = [(rank[("begun", 0)], rank[("hold", groups)]) for rank in ranks]
        return max(after[0] for _, after in held), max(after[0] - before[0] for before, after in held), max(after[1] - before[1] for before, after in held)

    def test_many_at_once(self):
        for transport in ("shm", "tcp"):
            for how, heap_each, pss_each in (("unused", 1800, 2048), ("used", 4096, 9216)):
                seen = {groups: self.hold(8, groups, how, transport) for groups in (1, 100, 1000)}
                if harness.sanitized():
                    continue
                for pss, _, _ in seen.values():
                    self.assertLess(pss, 16 * MIB, seen)
                for groups, (_, pss_more, heap_more) in seen.items():
                    self.assertLess(heap_more, 512 * 1024 + groups * heap_each, (transport, how, seen))
                    # 2 MiB: the large copy-in slots of the session, which oversubscribed groups of all sizes use
                    self.assertLess(pss_more, 4 * MIB + groups * pss_each, (transport, how, seen))

    def test_groups_come_and_go(self):
        """Ten thousand, one after the other: in the memory and with the descriptors of the first hundred."""
        for transport, groups in (("shm", 10000), ("tcp", 2000)):
            for rank in self.figures(3, ("churn", str(groups)), transport):
                first, last = rank[("churn", groups // 100)], rank[("churn", groups)]
                self.assertEqual(first[2], last[2], rank)
                if not harness.sanitized():
                    self.assertLess(last[1] - first[1], 128 * 1024, rank)  # 14 bytes a group: no memory of a group is kept
                    self.assertLess(last[0] - first[0], MIB, rank)

    def test_made_by_their_members(self):
        """Overlapping groups, one after the other: every sum is right, in the memory of the first hundred."""
        for transport in ("shm", "tcp"):
            for rank in self.figures(5, ("create", "1000"), transport):
                first, last = rank[("create", 100)], rank[("create", 1000)]
                self.assertLessEqual(last[2], first[2] + 8, rank)  # connections with further ranks
                if not harness.sanitized():
                    self.assertLess(last[1] - first[1], 128 * 1024, rank)

    def test_a_member_dies(self):
        for transport in ("shm", "tcp"):
            done = self.run_job(0, 4, [WORKER, "die"], "die-" + transport, environment={"WEFT_TRANSPORT_BACKEND": transport})
            self.assertNotEqual(done.returncode, 0, done.stdout)
            for rank in range(3):
                with open(os.path.join(self.path("die-" + transport), f"rank{rank}.log"), encoding="utf-8") as file:
                    self.assertRegex(file.read(), r"(?m)^create: WEFT_ERR_PEER_LOST: .*rank 3 \(")


if __name__ == "__main__":
    harness.main()
