#!/usr/bin/python3
"""test_slurm.py - the scripts of deploy/slurm under a Slurm of one node that the test starts: jobs in order, a trainer
that fails, a killed worker, scancel. It requires root, slurmctld, slurmd, munged and the example trainer.

    WEFT_BUILD=build python3 tests/deploy/test_slurm.py [-k NAME] [-v]
"""

import glob
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("WEFT_BUILD", os.path.join(ROOT, "build")))
TRAINER = os.path.join(BUILD, "examples", "fashion_mnist")
SNAPSHOT_TRAINER = os.path.join(BUILD, "tests", "system", "snapshot_trainer")
TRAIN, SERVERS = (os.path.join(ROOT, "deploy", "slurm", name) for name in ("train.sbatch", "servers.sbatch"))
SECONDS = 60  # limit of every wait
ENDLESS = ["--steps", "1000000"]

# Eight processors are declared, so that four tasks run on a machine with two.
CONFIGURATION = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
SlurmctldPort={control_port}
SlurmdPort={node_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(condition, what):
    limit = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError(f"not within {SECONDS} s: {what}")
        time.sleep(0.1)


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch")
                   if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")]
        if os.geteuid() != 0 or missing or not os.path.exists(TRAINER):
            raise unittest.SkipTest(f"requires root, {TRAINER} and Slurm; missing: {' '.join(missing) or 'none'}")
        cls.directory = tempfile.mkdtemp(prefix="weft-slurm-")
        cls.addClassCleanup(shutil.rmtree, cls.directory, ignore_errors=True)
        os.chmod(cls.directory, 0o755)
        cls.environment = {name: value for name, value in os.environ.items() if not name.startswith(("WEFT_", "SLURM_"))}
        cls.environment["PATH"] = os.path.join(BUILD, "tools") + ":" + os.environ["PATH"] + ":/usr/sbin"
        cls.environment["SLURM_CONF"] = cls.write("slurm.conf", CONFIGURATION.format(
            host=socket.gethostname().split(".")[0], directory=cls.directory, control_port=free_port(), node_port=free_port()))
        for name in ("state", "spool"):
            os.mkdir(os.path.join(cls.directory, name))
        cls.start_daemons()

    @classmethod
    def write(cls, name, content):
        path = os.path.join(cls.directory, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="latin-1") as file:
            file.write(content)
        return path

    @classmethod
    def start_daemons(cls):
        place = os.path.join(cls.directory, "munge")
        cls.write("munge.key", os.urandom(1024).decode("latin-1"))
        cls.start("munged", "--foreground", "--force", f"--socket={place}.socket", f"--key-file={place}.key",
                  f"--pid-file={place}.pid", f"--log-file={place}.log", f"--seed-file={place}.seed")
        wait_until(lambda: os.path.exists(place + ".socket"), "munged listens")
        cls.start("slurmctld", "-D")
        cls.start("slurmd", "-D")
        wait_until(lambda: "idle" in cls.slurm("sinfo", "-h", "-o", "%T", check=False), "the node is idle")

    @classmethod
    def start(cls, *words):
        with open(os.path.join(cls.directory, words[0] + ".out"), "w", encoding="utf-8") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log, env=cls.environment)
        cls.addClassCleanup(cls.stop, process)

    @staticmethod
    def stop(process):
        process.terminate()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @classmethod
    def slurm(cls, *words, check=True):
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=cls.environment,
                              check=check, timeout=SECONDS, cwd=getattr(cls, "place", cls.directory)).stdout

    def setUp(self):
        type(self).place = tempfile.mkdtemp(dir=self.directory)

    def submit(self, *words):
        return self.slurm("sbatch", "--parsable", *words).strip()

    def state(self, job):
        words = self.slurm("scontrol", "show", "job", job).split()
        return next(word.partition("=")[2] for word in words if word.startswith("JobState="))

    def output(self):
        text = ""
        for path in glob.glob(os.path.join(self.place, "*.log")):
            with open(path, encoding="utf-8", errors="replace") as file:
                text += file.read()
        return text

    def wait_for_end(self, job, state):
        wait_until(lambda: self.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), f"job {job} ends: {self.output()}")
        self.assertEqual(self.state(job), state, self.output())
        wait_until(lambda: not glob.glob(os.path.join(self.place, "secret.*")), "the secret is removed")
        return self.output()

    def workers(self):
        """Pids of the trainers that run in this test's directory and have begun to train."""
        found = []
        for path in glob.glob("/proc/[0-9]*"):
            try:
                if os.readlink(path + "/exe") == TRAINER and os.readlink(path + "/cwd") == self.place:
                    found.append(int(os.path.basename(path)))
            except OSError:  # it has ended
                continue
        return found

    def running(self, count):
        csv = os.path.join(self.place, "csv")

        def trains():
            return len(self.workers()) == count and os.path.exists(csv) and os.path.getsize(csv) > 0
        wait_until(trains, f"{count} workers train: {self.output()}")
        return self.workers()

    def test_in_order(self):
        for script, mode in ((TRAIN, "all_reduce"), (SERVERS, "server")):
            job = self.submit(script, TRAINER, "--mode", mode, "--steps", "5")
            self.assertIn("test accuracy", self.wait_for_end(job, "COMPLETED"))

    def test_a_linked_trainer_under_srun(self):
        """No coordinator and no launcher of weft: rank 0's library coordinates."""
        text = self.slurm("srun", "--ntasks=2", "--kill-on-bad-exit=1", TRAINER, "--steps", "5")
        self.assertEqual(text.count("test accuracy"), 1, text)

    def test_a_trainer_that_fails_before_it_joins(self):
        for script in (TRAIN, SERVERS):
            self.wait_for_end(self.submit(script, "false"), "FAILED")

    def test_a_killed_worker_is_named(self):
        for script, mode, count in ((TRAIN, "all_reduce", 4), (SERVERS, "server", 2)):
            self.setUp()
            job = self.submit(script, TRAINER, "--mode", mode, *ENDLESS, "--csv", "csv")
            pid = self.running(count)[-1]
            os.kill(pid, signal.SIGKILL)
            self.assertIn(f"pid {pid}", self.wait_for_end(job, "FAILED"))

    def requeue(self, job):
        """Slurm delays the second start, until no task of the first one can be left; the test does not wait for that."""
        self.slurm("scontrol", "requeue", job)
        wait_until(lambda: self.state(job) == "PENDING", f"job {job} is pending")
        wait_until(lambda: not self.workers(), "the workers of the first start have ended")
        for path in glob.glob(os.path.join(self.place, "csv")):  # that of the second start shows its progress
            os.unlink(path)
        self.slurm("scontrol", "update", f"JobId={job}", "StartTime=now")

    def test_requeue(self):
        """The job starts again under its number, with the same port, a new secret and its log; shards restore the newest snapshot."""
        folder = os.path.join(self.place, "snapshots")
        job = self.submit(f"--export=ALL,WEFT_SNAPSHOT_FOLDER={folder},WEFT_SNAPSHOT_EVERY=5 steps", SERVERS, SNAPSHOT_TRAINER, "400", "10")
        wait_until(lambda: glob.glob(os.path.join(folder, "snap-*.json")), f"a snapshot: {self.output()}")
        self.requeue(job)
        text = self.wait_for_end(job, "COMPLETED")
        starts = [int(step) for step in re.findall(r"steps (\d+) to 400: ", text)]
        self.assertEqual(len(starts), 2, text)
        self.assertGreater(starts[0], 5, text)
        self.assertEqual(set(starts), {starts[0]})

    def test_requeue_without_shards(self):
        job = self.submit(TRAIN, TRAINER, *ENDLESS, "--csv", "csv")
        self.running(4)
        self.requeue(job)
        self.running(4)
        self.slurm("scancel", job)
        self.wait_for_end(job, "CANCELLED")

    def test_scancel_leaves_nothing(self):
        for script, mode, count in ((TRAIN, "all_reduce", 4), (SERVERS, "server", 2)):
            self.setUp()
            job = self.submit(script, TRAINER, "--mode", mode, *ENDLESS, "--csv", "csv")
            self.running(count)
            self.slurm("scancel", job)
            self.wait_for_end(job, "CANCELLED")
            wait_until(lambda: not self.workers(), "the workers have ended")


if __name__ == "__main__":
    unittest.main()
