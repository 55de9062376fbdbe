"""test_snapshot_store.py - the folder of a job's snapshots: the commands on it, and the program that copies it elsewhere."""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import unittest
import urllib.request

import harness
import snapshot_jobs

HOOK = """#!/bin/sh
# put FILE NAME, get NAME FILE, list PREFIX, delete NAME over a folder; every fifth call fails
exec 9> {store}/lock
flock 9
case $1 in put) name=$3;; *) name=$2;; esac
if [ $(($(wc -l < {store}/calls 2>/dev/null || echo 0) % 5)) = 4 ]; then
    echo "failed: $1 $name" >> {store}/calls
    exit 1
fi
echo "done: $1 $name" >> {store}/calls
case $1 in
put) mkdir -p "$(dirname "{store}/$3")" && cp "$2" "{store}/$3" ;;
get) cp "{store}/$2" "$3" ;;
list) ls {store} | grep "^$2" ;;
delete) rm "{store}/$2" ;;
esac
"""


class SnapshotStore(snapshot_jobs.SnapshotTest):
    def test_commands(self):
        folder, exported = self.path("snapshots"), self.path("out.safetensors")
        self.assertIsNotNone(self.train_to(10, snapshot_folder=folder, snapshot_every="5 steps", pause_ms=100), self.output)
        rows = json.loads(self.weft("list", folder, "--json"))
        self.assertEqual([row["step"] for row in rows], [5, 10], self.output)
        self.assertEqual([rows[0][name] for name in ("workers", "shards", "weights", "tensors")], [2, 2, "f32", 3])
        self.assertEqual(len(self.weft("list", folder).splitlines()), 3)
        self.assertEqual([row["is_whole"] for row in json.loads(self.weft("verify", folder, "--json"))], [True, True])
        self.weft("export", folder + ":5", "-o", exported, "--states")
        with open(exported, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        self.assertEqual(sorted(name for name in header if name.startswith("large")), ["large", "large.state0", "large.state1"])
        self.assertEqual(header["large"]["shape"], [300000])
        self.weft("prune", folder, "--keep", "1", "--age", "0")
        self.assertEqual(self.snapshots(folder), [10])
        self.assertEqual(self.weft("verify", folder), "step 10 is whole\n")
        piece = glob.glob(os.path.join(folder, "pieces", "*", "*"))[0]
        with open(piece, "r+b") as file:
            file.seek(20)
            file.write(b"damage")
        self.assertIn(os.path.basename(piece)[:32], self.weft("verify", folder, status=1))

    def test_hook(self):
        """A program that fails every fifth time copies all files, the manifest last, and a restore gets them back. Old ones are removed."""
        store, folder, script = self.path("store"), self.path("snapshots"), self.path("hook")
        os.mkdir(store)
        with open(script, "w") as file:
            file.write(HOOK.format(store=store))
        os.chmod(script, 0o755)
        whole = self.train_to(20)
        self.assertIsNotNone(self.train_to(10, snapshot_folder=folder, snapshot_every="5 steps", snapshot_hook=script, snapshot_hook_keep="1",
                                           pause_ms=100), self.output)
        self.assertEqual(self.snapshots(folder), [5, 10], self.output)
        self.assertEqual(self.snapshots(store), [10], self.output)
        with open(os.path.join(store, "calls")) as file:
            calls = file.read().split("\n")
        self.assertTrue(any(call.startswith("failed: put") for call in calls), calls)
        self.assertEqual([call for call in calls if call.startswith("done: put")][-1], "done: put snap-10.json", calls)
        self.assertIn("done: delete snap-5.json", calls)
        self.assertEqual(self.weft("verify", store), "step 10 is whole\n")
        again = self.train_to(20, shards=1, snapshot_restore=self.path("elsewhere"), snapshot_hook=script)
        self.assertEqual(again, (11, whole[1]), self.output)
        self.assertEqual(self.snapshots(self.path("elsewhere")), [10])

    def test_hook_fails(self):
        """A program that always fails ends the snapshot with a sentence, and the job continues."""
        folder = self.path("snapshots")
        self.assertIsNotNone(self.train_to(10, snapshot_folder=folder, snapshot_every="5 steps", snapshot_hook="/bin/false",
                                           pause_ms=50), self.output)
        self.assertEqual(self.snapshots(folder), [], self.output)
        self.assertIn("the hook of snapshots has failed 3 times: /bin/false put", self.output)

    def test_failure_is_reported(self):
        """weft run prints a snapshot that fails, and weft status shows it."""
        variables, stop = self.path("variables"), self.path("output")
        command = f"env | grep ^WEFT_ > {variables}; exec {snapshot_jobs.TRAINER} 100000 50"
        with open(stop, "w") as output:
            run = subprocess.Popen([harness.PROGRAMS.weft, "run", "-s", "1", "-n", "1", "--log-dir", self.path("run"), "--", "sh", "-c", command],
                                   stdout=output, stderr=output, env={**os.environ, "WEFT_SNAPSHOT_FOLDER": self.path("snapshots"),
                                                                      "WEFT_SNAPSHOT_EVERY": "5 steps", "WEFT_SNAPSHOT_HOOK": "/bin/false"})
        try:
            def printed():
                with open(stop) as file:
                    return re.search(r"(?m)^weft run: the snapshot of step (\d+) has failed: .*: the hook of snapshots .*; last complete step: 0 ", file.read())
            self.assertEqual(int(self.wait_for("the sentence of weft run", printed)[1]) % 5, 0)
            with open(variables) as file:
                environment = {**os.environ, **dict(line.rstrip("\n").split("=", 1) for line in file)}
            status = subprocess.run([harness.PROGRAMS.weft, "status"], stdout=subprocess.PIPE, text=True, env=environment, timeout=60).stdout
            self.assertRegex(status, r"(?m)^snapshots: none is complete; \d+ failed, the last one of step \d+: shard 0 .*: the hook of snapshots")
        finally:
            run.send_signal(signal.SIGINT)
            run.wait()

    def test_options(self):
        """--check-config refuses what a start would refuse."""
        for words, sentence in ((["--set", "snapshot.every=5 weeks"], "no interval of snapshots"), (["--restore", ":5"], "names no snapshot"),
                                (["--set", "snapshot.folder=/proc/none/x"], "snapshot.folder = /proc/none/x cannot be written: No such file"),
                                (["--set", f"server.store={self.path('store')}"], "server.store needs server.copies=1"),
                                (["--set", "server.copies=1", "--set", f"server.store={self.path('none', 'x')}"], "cannot be written: No such file or directory")):
            done = subprocess.run([harness.PROGRAMS.weftd, "--check-config", *words], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 1)
            self.assertIn(sentence, done.stderr)
        done = subprocess.run([harness.PROGRAMS.weft, "run", "-n", "1", "-s", "2", "--log-dir", self.path("logs"), "--", "true"], capture_output=True,
                              text=True, timeout=60, env={**os.environ, "WEFT_SERVER_COPIES": "1", "WEFT_SERVER_STORE": "/proc/none/x"})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"weft run: shard 0 .* exited with status 1; the end of (.*\n)+.*the store /proc/none/x cannot be opened: No such file")
        shutil.rmtree(self.path("logs"))
        words = ["--set", f"snapshot.folder={self.path('made')}", "--set", f"server.store={self.path('store')}", "--set", "server.copies=1"]
        self.assertEqual(subprocess.run([harness.PROGRAMS.weftd, "--check-config", *words], stdout=subprocess.DEVNULL, timeout=60).returncode, 0)
        self.assertEqual(os.listdir(self.directory), [])

    def metric(self, address, name):
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
            return float(re.search(rf"^{name}{{.*}} (\S+)$", page.read().decode(), re.MULTILINE)[1])

    def test_metrics(self):
        ports, folder = self.path("ports"), self.path("snapshots")
        weftd = subprocess.Popen([harness.PROGRAMS.weftd, "--workers", "1", "--http-port", "0", "--port-file", ports],
                                 env={**os.environ, "WEFT_SNAPSHOT_FOLDER": folder, "WEFT_SNAPSHOT_EVERY": "5 steps"})
        try:
            self.wait_for("the port file", lambda: os.path.exists(ports))
            with open(ports) as file:
                address = dict(line.strip().split("=") for line in file)
            trainer = subprocess.Popen([snapshot_jobs.TRAINER, "20", "50"], stdout=subprocess.DEVNULL,
                                       env={**os.environ, "WEFT_CLIENT_COORDINATOR": address["coordinator"], "WEFT_CLIENT_RANK": "0"})
            self.wait_for("a commit", lambda: self.metric(address["http"], "weft_snapshot_commits_total") > 0)
            self.assertEqual(self.metric(address["http"], "weft_snapshot_step") % 5, 0)
            self.assertGreater(self.metric(address["http"], "weft_snapshot_captured_bytes_total"),
                               self.metric(address["http"], "weft_snapshot_stored_bytes_total"))
            self.assertEqual(self.metric(address["http"], "weft_snapshot_stall_seconds_total"), 0)
            self.assertEqual([trainer.wait(60), weftd.wait(60)], [0, 0])
        finally:
            weftd.kill()
            weftd.wait()


if __name__ == "__main__":
    unittest.main()
