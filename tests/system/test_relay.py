"""test_relay.py - a relay between a member and the coordinator passes the handshake on and then attacks: it adds,
repeats, swaps, changes, leaves out or cuts a control frame, or passes nothing on any more.

No attack makes a process report success, and the process whose frame was attacked names the reason."""

import os
import socket
import threading

import frames
import harness

WORKER = os.path.join(harness.BUILD, "examples", "02_push_pull")
FAILED = "a control frame failed its MAC"
# Frames of each direction: 0 Challenge, 1 Welcome; 0 Hello. The attack is on a frame behind them.
FIRST = {"down": 2, "up": 1}
ABORT = bytes([0x6A, 4, 0x08, 0x7B, 0x12, 0])  # Control.abort {status -62, text ""}
SECONDS = 60


class Relay:
    """One listener; each accepted connection gets one to the coordinator. The first one is attacked."""

    def __init__(self, attack, direction, to):
        self.attack, self.direction, self.to = attack, direction, to
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.done = threading.Event()  # the attack has taken place
        self.sockets = [self.listener]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        try:
            while True:
                member, _ = self.listener.accept()
                coordinator = socket.create_connection(self.to)
                self.sockets += [member, coordinator]
                for source, sink, direction in ((coordinator, member, "down"), (member, coordinator, "up")):
                    threading.Thread(target=self.run, args=(source, sink, direction), daemon=True).start()
        except OSError:
            pass

    def run(self, source, sink, direction):
        number, held, last = 0, None, None
        try:
            while True:
                frame = frames.read_frame(source)
                if frame is None:
                    break
                out = [frame]
                if direction == self.direction and number >= FIRST[direction] and not self.done.is_set():
                    out, held = self.change(frame, last, held)
                elif self.done.is_set() and self.attack == "silence":
                    out = []
                for each in out:
                    sink.sendall(each)
                last = frame
                number += 1
            if self.attack != "silence":
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def change(self, frame, last, held):
        """The frames to send instead, and the frame that is kept for later."""
        attack = self.attack
        if attack == "swap" and held is None:
            return [], frame
        self.done.set()
        if attack == "swap":
            return [frame, held], None
        if attack == "inject":
            return [frames.framed(ABORT), frame], None
        if attack == "inject_sealed":
            return [frames.framed(ABORT + bytes(16)), frame], None
        if attack == "replay":
            return [frame, frame], None
        if attack == "flip":
            changed = bytearray(frame)
            changed[4] ^= 1
            return [bytes(changed)], None
        if attack == "cut":  # the end of the frame is missing, the next one follows
            return [frame[:-3]], None
        if attack == "truncate":  # a shorter frame with a length that fits
            return [frames.framed(frame[4:-1])], None
        return [], None  # leave_out, silence

    def close(self):
        for each in self.sockets:
            each.close()


class Attacks(harness.JobTest):
    def start(self, name, member, attack, direction, secret="a secret of 32 characters, or so"):
        """Shard 0 coordinates; the attacked member reaches it through the relay."""
        group = self.group(name)
        ports = self.path(name, "ports")
        common = {"WEFT_JOB": name, "WEFT_SECRET": secret, "WEFT_SERVER_HEARTBEAT": "4s", "WEFT_CLIENT_DEADLINE": "30s"}
        weftd = harness.PROGRAMS.weftd
        shards = 2 if member == "shard1" else 1
        group.start("shard0", [weftd, "--index", "0", "--workers", "1", "--shards", str(shards), "--port-file", ports], common)
        coordinator = harness.jobs.wait_for_port_file(ports, group)
        host, port = coordinator.rsplit(":", 1)
        relay = Relay(attack, direction, (host, int(port)))
        self.addCleanup(relay.close)
        through = {member: relay.address}
        if shards == 2:
            group.start("shard1", [weftd, "--index", "1", "--coordinator", through.get("shard1", coordinator)], common)
        group.start("worker0", [WORKER], {**common, "WEFT_RANK": "0", "WEFT_COORDINATOR": through.get("worker0", coordinator)})
        return group, relay

    def finish(self, group, relay):
        times = harness.ends(group.processes, SECONDS)
        logs = {name: self.log(group, name) for name, _ in group.processes}
        everything = "\n".join(f"{name}: {log}" for name, log in logs.items())
        self.assertNotIn(None, times.values(), everything)
        self.assertTrue(relay.done.is_set(), everything)
        for name, process in group.processes:
            self.assertNotEqual(process.returncode, 0, f"{name} reports success:\n{everything}")
        self.assertNotIn("aborted by", everything)
        return logs

    def attack(self, member, direction):
        """All attacks at the same time, each on a job of its own."""
        attacks = ("inject", "inject_sealed", "replay", "swap", "flip", "leave_out", "cut", "truncate")
        jobs = [(attack, *self.start(f"{member}-{direction}-{attack}", member, attack, direction)) for attack in attacks]
        attacked = member if direction == "down" else "shard0"
        for attack, group, relay in jobs:
            with self.subTest(attack=attack):
                self.assertIn(FAILED, self.finish(group, relay)[attacked])

    def test_coordinator_to_worker(self):
        self.attack("worker0", "down")

    def test_worker_to_coordinator(self):
        self.attack("worker0", "up")

    def test_coordinator_to_shard(self):
        self.attack("shard1", "down")

    def test_shard_to_coordinator(self):
        self.attack("shard1", "up")

    def test_without_a_secret(self):
        """The MAC then detects accidents."""
        group, relay = self.start("plain", "worker0", "flip", "down", secret="")
        self.assertIn(FAILED, self.finish(group, relay)["worker0"])

    def test_no_attack(self):
        """The relay itself does no harm."""
        group, relay = self.start("honest", "worker0", "none", "neither")
        times = harness.ends(group.processes, SECONDS)
        self.assertEqual([process.returncode for _, process in group.processes], [0, 0], times)

    def test_silence(self):
        """Nothing passes any more, and no connection closes: both sides end by their own clocks."""
        jobs = [(member, *self.start(f"{member}-silence", member, "silence", "down")) for member in ("worker0", "shard1")]
        for member, group, relay in jobs:
            with self.subTest(member=member):
                logs = self.finish(group, relay)
                self.assertRegex(logs[member], r"the network to it is cut: no message for \d+ s")
                self.assertIn("lost: silent for 4 s", logs["shard0"])


if __name__ == "__main__":
    harness.main()
