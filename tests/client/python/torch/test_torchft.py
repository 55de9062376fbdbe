"""torchft's contract of a process group: quorums that grow, shrink and lose members; the oracle is a sum."""

import json
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import jobs
import pytest
import torch.distributed as dist

HERE = Path(__file__).resolve().parent


class Replicas:
    """Processes with one store, in which the quorums of torchft_replica.py are."""

    def __init__(self, folder):
        self.folder, self.running, self.number = folder, {}, 0
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=120), wait_for_workers=False)

    def quorum(self, members, dies=None):
        """Start replicas that are new, and wait until all members but the one that dies have done the quorum's step."""
        self.store.set(f"quorum/{self.number}", json.dumps({"members": members, "dies": dies}))
        for name in set(members) - set(self.running):
            self.start("torchft_replica.py", name, str(self.number))
        self._wait([name for name in members if name != dies])
        self.number += 1

    def start(self, program, name, *arguments, **variables):
        """Start `program` as replica `name`; its output is in the folder."""
        command = [sys.executable, HERE / program, str(self.store.port), name, *arguments]
        environment = jobs.environment(**variables)
        with open(self.folder / f"{name}.log", "w") as log:
            self.running[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def _wait(self, names, rounds=12):
        """Wait for reports; at most 120 s, and not for a replica that has failed."""
        for _ in range(rounds):
            try:
                return self.store.wait([f"done/{self.number}/{name}" for name in names], timedelta(seconds=10))
            except dist.DistStoreError:
                assert not [name for name in names if self.running[name].poll()], "a replica has failed"
        raise AssertionError(f"quorum {self.number} has not been done")

    def text(self):
        return "\n".join(f"---- {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))

    def end(self):
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def replicas(tmp_path):
    made = Replicas(tmp_path)
    yield made
    made.end()


def test_quorums_grow_and_lose_members(replicas):
    try:
        replicas.quorum(["a", "b"])
        replicas.quorum(["a", "b", "c"], dies="b")  # c is new; then b is killed
        replicas.quorum(["a", "c"], dies="a")  # the rank that coordinates is killed
        replicas.quorum(["c"])
        replicas.store.set(f"quorum/{replicas.number}", json.dumps({"members": [], "dies": None}))
        assert replicas.running["c"].wait(60) == 0
    except Exception as error:
        raise AssertionError(f"{error}\n{replicas.text()}") from error
    assert "ended c" in replicas.text()


def _wait_for_survivor(running, seconds=120):
    """Wait until replica a has ended well. Replica b is killed; if it ends otherwise, a has no partner."""
    end = time.monotonic() + seconds
    while running["a"].poll() is None:
        assert running["b"].poll() in (None, -signal.SIGKILL), "replica b has failed"
        assert time.monotonic() < end, f"replica a has not ended after {seconds} s"
        time.sleep(0.1)
    assert running["a"].poll() == 0, "replica a has failed"


def test_torchft_goes_on_without_a_killed_replica(replicas):
    pytest.importorskip("torchft", reason="torchft is not installed; tools/lib/python-env --trainers installs it")
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=5000)
    address = "http://127.0.0.1:" + lighthouse.address().rsplit(":", 1)[1]
    try:
        for name, dies in (("a", "no"), ("b", "yes")):
            replicas.start("torchft_manager.py", name, dies, TORCHFT_LIGHTHOUSE=address)
        _wait_for_survivor(replicas.running)
    except Exception as error:
        raise AssertionError(f"{error}\n{replicas.text()}") from error
    finally:
        replicas.end()
        lighthouse.shutdown()
    text = replicas.text()
    assert "ended a" in text and "ended b" not in text, text
    assert "committed b " in text and "committed b 1 " not in text, text  # b has the state of a
