"""test_resume.py - a relay cuts the control connection of a member: the member resumes, and the job continues.

A process that dies at the other end of a cut connection is lost at once."""

import os
import re
import socket
import struct
import threading

import frames
import harness

WORKER = os.path.join(harness.BUILD, "examples", "02_push_pull")
SECONDS = 60
RESUMED = "is up again"


class CuttingRelay:
    """Passes frames on. At frame `number` of a direction (0: Challenge or Hello) it closes both sockets, and the frame is
    lost. With `again` it does so every that many frames of a connection, in both directions."""

    def __init__(self, to, direction="", number=0, again=0, reopens=True):
        self.to, self.direction, self.number, self.again, self.reopens = to, direction, number, again, reopens
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.cuts, self.pairs, self.lock = 0, [], threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        try:
            while True:
                member, _ = self.listener.accept()
                if self.cuts > 0 and not self.reopens:
                    member.close()
                    continue
                coordinator = socket.create_connection(self.to)
                pair = [member, coordinator]
                self.pairs.append(pair)
                for source, sink, direction in ((coordinator, member, "down"), (member, coordinator, "up")):
                    threading.Thread(target=self.run, args=(source, sink, direction, pair), daemon=True).start()
        except OSError:
            pass

    def run(self, source, sink, direction, pair):
        number = 0
        try:
            while (frame := frames.read_frame(source)) is not None:
                at_frame = direction == self.direction and number == self.number and self.cuts == 0
                if at_frame or (self.again and number >= self.again):
                    self.cut(pair)
                    return
                sink.sendall(frame)
                number += 1
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self, pair=None):
        with self.lock:
            self.cuts += 1
        for each in pair or self.pairs[-1]:
            # a reset: what has not been read is lost
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            try:
                each.shutdown(socket.SHUT_RDWR)  # ends the other thread's recv
            except OSError:
                pass
            each.close()

    def close(self):
        self.listener.close()
        for pair in self.pairs:
            for each in pair:
                each.close()


class Resume(harness.JobTest):
    def start(self, name, member, words=None, environment=None, **relay_options):
        """Shards 0 and 1, ranks 0 and 1. Shard 0 coordinates; `member` reaches it through a relay."""
        group = self.group(name)
        ports = self.path(name, "ports")
        common = {"WEFT_JOB": name, "WEFT_SECRET": "a secret of 32 characters, or so", "WEFT_CLIENT_DEADLINE": "30s",
                  **(environment or {})}
        weftd = harness.PROGRAMS.weftd
        group.start("shard0", [weftd, "--index", "0", "--workers", "2", "--shards", "2", "--port-file", ports], common)
        coordinator = harness.jobs.wait_for_port_file(ports, group)
        host, port = coordinator.rsplit(":", 1)
        relay = CuttingRelay((host, int(port)), **relay_options)
        self.addCleanup(relay.close)
        through = {member: relay.address}
        group.start("shard1", [weftd, "--index", "1", "--coordinator", through.get("shard1", coordinator)], common)
        for rank in (0, 1):
            name = f"worker{rank}"
            group.start(name, words or [WORKER],
                        {**common, "WEFT_RANK": str(rank), "WEFT_COORDINATOR": through.get(name, coordinator)})
        return group, relay

    def finish(self, group):
        times = harness.ends(group.processes, SECONDS)
        logs = {name: self.log(group, name) for name, _ in group.processes}
        everything = "\n".join(f"{name}: {log}" for name, log in logs.items())
        self.assertNotIn(None, times.values(), everything)
        return logs, everything

    def check_success(self, group):
        logs, everything = self.finish(group)
        for name, process in group.processes:
            self.assertEqual(process.returncode, 0, f"{name} failed:\n{everything}")
        return logs, everything

    def weights(self, logs):
        return re.findall(r"step .*|weights went to \S+", logs["worker0"] + logs["worker1"])

    def test_cut_at_each_frame(self):
        """A cut at each frame of the join, of the declaration and of the end; the weights are those of a job without cuts."""
        whole, _ = self.start("whole", "worker1")
        cases = [("worker1", "down", 2), ("worker1", "down", 3), ("worker1", "down", 4), ("worker1", "up", 1),
                 ("worker1", "up", 2), ("worker1", "up", 3), ("worker1", "up", 4), ("shard1", "down", 2),
                 ("shard1", "down", 4), ("shard1", "up", 1), ("shard1", "up", 2), ("shard1", "up", 3)]
        jobs = [(case, *self.start("-".join(map(str, case)), case[0], direction=case[1], number=case[2])) for case in cases]
        expected = self.weights(self.check_success(whole)[0])
        self.assertEqual(len(expected), 8)
        for case, group, relay in jobs:
            with self.subTest(case=case):
                logs, everything = self.check_success(group)
                self.assertEqual(relay.cuts, 1, everything)
                self.assertEqual(self.weights(logs), expected)

    def test_many_cuts(self):
        """Each connection carries a few frames only."""
        for member in ("worker0", "shard1"):
            with self.subTest(member=member):
                group, relay = self.start(f"many-{member}", member, again=4)
                logs, everything = self.check_success(group)
                self.assertGreaterEqual(relay.cuts, 1, everything)
                self.assertIn(RESUMED, logs[member])

    def test_not_resumed(self):
        """The relay accepts no connection again: the job ends by the name of the member, after server.resume."""
        group, relay = self.start("closed", "worker1", direction="down", number=4, reopens=False,
                                  environment={"WEFT_SERVER_RESUME": "700ms"})
        logs, everything = self.finish(group)
        self.assertRegex(logs["worker0"], r"lost rank 1 \(.*\): rank 1 \(.*\) lost: connection closed", everything)
        self.assertRegex(logs["worker1"], "the control connection with .* closed", everything)

    def test_without_resume(self):
        group, relay = self.start("off", "worker1", direction="down", number=4, environment={"WEFT_SERVER_RESUME": "0"})
        logs, everything = self.finish(group)
        self.assertRegex(logs["worker0"], r"rank 1 \(.*\) lost: connection closed", everything)

    def test_dead_process_is_lost_at_once(self):
        """The kernel of the coordinator's host knows that the process has ended: nothing waits for a Resume."""
        report = self.path("report.csv")
        trainer = [harness.PROGRAMS.trainer, "--epochs", "1000", "--hidden", "16", "--eval-every", "1", "--csv", report]
        group, _ = self.start("killed", "worker1", words=trainer, environment={"WEFT_SERVER_RESUME": "30s"})
        self.wait_for_steps(group, report)
        harness.kill(dict(group.processes)["worker1"])
        times = harness.ends([each for each in group.processes if each[0] != "worker1"], 20)  # below server.resume
        everything = "\n".join(self.log(group, name) for name, _ in group.processes)
        self.assertNotIn(None, times.values(), everything)
        self.assertIn("lost: connection closed", self.log(group, "shard0"))


if __name__ == "__main__":
    harness.main()
