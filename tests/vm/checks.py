#!/usr/bin/python3
"""checks.py - the checks in the virtual machine; runs inside the guest, started by suite.py.

    checks.py BUILD SETUP OUT SECONDS [NAME...]

SETUP: "one" (device rxe0) or "pair" (rxe0 and rxe1 joined by veth0 - veth1). One line per check as it ends, and
OUT/results.json: a list of {name, outcome, seconds, words, output}; outcome is ok, FAILED, skipped or not run (SECONDS
were over). Every process has its own time limit, because RDMA
programs wait without limit for a missing peer. A check is a function of Checks below; it fails by an exception.
"""

import csv
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools", "dev"))
import jobs  # noqa: E402

SLOW = 8  # factor of every limit below, for an emulated machine on a busy host
STEPS = 20
# UCX over soft-RoCE: UD for wireup, RC for data. UD drops packets to the IPv4 address unless its GID check is off. The default
# of 7 retries of RC has no limit on this device.
UCX_VERBS = {"UCX_TLS": "rc_verbs,ud_verbs", "UCX_UD_VERBS_ETH_DGID_CHECK": "n", "UCX_IB_GID_INDEX": "1", "UCX_RC_VERBS_RETRY_COUNT": "6",
             "UCX_UD_VERBS_RX_QUEUE_LEN": "1024"}


class Failed(Exception):
    """The sentence of a failed check."""


class Skipped(Exception):
    """Why a check cannot run in this build."""


DEADLINE = time.monotonic()


def left():
    return max(0.1, DEADLINE - time.monotonic())


def execute(words, seconds, environment=None, accept=(0,)):
    """Output of a process that must end with 0 (or a status of `accept`) in time; its process group is killed afterwards."""
    seconds = min(seconds, left())
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", start_new_session=True, env={**os.environ, **(environment or {})})
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise Failed(f"{os.path.basename(words[0])} was not done after {seconds:.0f} s\n{output}") from None
    if process.returncode not in accept:
        raise Failed(f"{os.path.basename(words[0])} ended with status {process.returncode}\n{output}")
    return output


class Checks:
    def __init__(self, build, setup):
        self.build, self.setup = build, setup
        self.devices = ["rxe0", "rxe1"] if setup == "pair" else ["rxe0"]
        self.programs = jobs.Programs(build)
        self.scratch = "/tmp/checks"
        self.note = ""  # shown after the outcome
        self.tcp = None  # what the main job reports over tcp

    def path(self, *parts):
        return os.path.join(self.scratch, *parts)

    # --- the machine itself ---

    def heal(self):
        """Restores the links, which a failed check may have cut."""
        if self.setup != "pair":
            return
        for interface in ("veth0", "veth1", "veth2", "veth3"):
            for words in (["tc", "qdisc", "del", "dev", interface, "root"], ["ip", "link", "set", interface, "up"]):
                subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["sh", os.path.join(ROOT, "tests", "vm", "repair-pair")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def devices_are_up(self):
        """Soft-RoCE is up: all other checks require it."""
        shown = execute(["rdma", "link", "show"], 5 * SLOW)
        for device in self.devices:
            if not re.search(rf"{device}/1 state ACTIVE", shown):
                raise Failed(shown)
        self.note = " and ".join(self.devices)

    # --- one program of the build tree ---

    def cases(self, words, seconds, environment=None):
        """Runs a cmocka program; returns the number of cases that passed."""
        path = os.path.join(self.build, words[0])
        if not os.path.exists(path):
            raise Skipped(f"{words[0]} is not built")
        output = execute([path] + words[1:], seconds * SLOW, environment)
        passed = len(re.findall(r"^\[       OK \]", output, re.M))
        skipped = len(set(re.findall(r"^\[  SKIPPED \] ([a-z]\w*)", output, re.M)))
        if passed == 0:
            raise Failed("no test case ran\n" + output)
        self.note = f"{passed} cases" + (f", {skipped} skipped" if skipped else "")

    def device_half(self):
        """Queue pairs, completions, errors and the registration cache, below the transport; on the pair, with a faulty link."""
        self.cases(["tests/transport/test_verbs_device"], 20, {"WEFT_TEST_DEVICES": " ".join(self.devices), **self.wire()})

    def connection_manager(self):
        """Queue pairs connected by librdmacm."""
        self.cases(["tests/transport/test_verbs_cm"], 10, {"WEFT_TEST_DEVICES": " ".join(self.devices)})

    def conformance_ucx_verbs(self):
        """The transport's conformance suite over UCX on RC queue pairs; endpoints alternate between the devices."""
        self.conformance("ucx-verbs", " ".join(device + ":1" for device in self.devices), UCX_VERBS)

    def remote_access_ucx_verbs(self):
        """Put and get by UCX's own remote access: the processor of the owner touches no byte, and closing waits for holders of the key."""
        self.cases(["tests/transport/test_transport_ucx", "test_remote_access"], 10,
                   {**UCX_VERBS, "WEFT_TEST_DEVICES": " ".join(device + ":1" for device in self.devices)})

    def wire(self):
        """Environment of tests that disturb the link; empty without a pair."""
        if self.setup != "pair":
            return {}
        return {"WEFT_TEST_WIRE": "veth0", "WEFT_TEST_WIRE_REPAIR": "sh " + os.path.join(ROOT, "tests", "vm", "repair-pair")}

    def conformance(self, flavour, devices=None, environment=None):
        """The transport's conformance suite over one of conformance/flavours.c; endpoints alternate between the devices."""
        self.cases(["tests/transport/test_conformance", flavour], 30, {"WEFT_TEST_DEVICES": devices or " ".join(self.devices), **(environment or {})})

    def conformance_verbs(self):
        """The verbs backend with its defaults."""
        self.conformance("verbs")

    def conformance_verbs_lanes(self):
        """Four lanes to each peer and small windows everywhere; on the pair, over two rails."""
        self.conformance("verbs-lanes", "rxe0,rxe2 rxe1,rxe3" if self.setup == "pair" else None)

    def conformance_verbs_cm(self):
        """Queue pairs connected by librdmacm."""
        self.conformance("verbs-cm")

    def conformance_auto_verbs(self):
        """auto with verbs inside: every other endpoint has no shared memory, so that both transports are in use."""
        self.conformance("auto-verbs")

    def auto_device_goes(self):
        """The link of the verbs backend of auto is cut: its peers fail with its name, peers over shared memory continue."""
        self.cases(["tests/transport/test_transport_auto", "test_verbs_*"], 10, {"WEFT_TEST_DEVICES": " ".join(self.devices), **self.wire()})

    def p2p_and_doctor(self):
        """The tools over verbs: with a secret, listening on the network of the device; the transport that a job would use."""
        secret = self.path("secret")
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write("0123456789abcdef0123456789abcdef")
        words = [self.programs.weft, "bench", "p2p", "--secret-file", secret, "--devices", self.devices[0], "--op", "send,put", "--row-ms", "50",
                 "--measure", "bw", "-b", "4K", "-e", "4K", "--wait", "auto", "--deadline", "120", "--json"]
        for transport in ("verbs", "auto"):
            rows = [json.loads(line) for line in execute(words + ["--transport", transport], 20 * SLOW).splitlines() if line.startswith("{")]
            if len(rows) != 2 or any(row["wrong"] for row in rows):
                raise Failed(f"{transport}: {rows}")
        report = json.loads(execute([self.programs.weft, "doctor", "--json", "--no-cache", "--transport", "verbs,auto", "--devices", self.devices[0],
                                     "--deadline", "60"], 20 * SLOW, accept=(0, 1)))
        texts = [finding["text"] for finding in report["findings"] if finding["id"] == "auto"]
        if len(texts) != 1 or "a job uses shm" not in texts[0]:
            raise Failed(f"doctor reports for auto: {texts}")
        found = {(finding["id"], finding["level"]) for finding in report["findings"] if finding["subject"].startswith(self.devices[0].split(":")[0])}
        for expected in (("rdma-emulated", "note"), ("rdma-pkey", "ok"), ("rdma-gid", "ok"), ("rdma-mtu", "ok"), ("rdma-class", "note"),
                         ("rdma-link-errors", "ok"), ("rdma-routing", "ok")):
            if expected not in found:
                raise Failed(f"doctor does not report {expected} of soft-RoCE, but {sorted(found)}")
        self.note = texts[0]

    # --- a job that loses a shard ---

    def failover_verbs(self):
        """A shard of a job with copies is killed: its copies lead, and no number is lost or counted twice."""
        counting = os.path.join(self.build, "tests", "client", "counting")
        if not os.path.exists(counting):
            raise Skipped("tests/client/counting is not built")
        directory, stop = self.path("job"), self.path("stop")
        os.makedirs(directory, exist_ok=True)
        secret = os.path.join(directory, "secret")
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write("0123456789abcdef0123456789abcdef")
        environment = {"WEFT_TRANSPORT_BACKEND": "verbs", "WEFT_TRANSPORT_DEVICES": self.devices[0] + ":1", "WEFT_SECRET_FILE": secret,
                       "WEFT_SERVER_COPIES": "1", "WEFT_SERVER_COPIES_ON_ONE_HOST": "yes", "WEFT_SERVER_HEARTBEAT": "30s"}
        worker = ["env", f"WEFT_TRANSPORT_DEVICES={self.devices[-1]}:1", counting, stop, "4000"]
        with jobs.Group(directory) as group:
            jobs.start_by_hand(self.programs, group, 3, 2, worker, environment=environment)
            self.await_steps(group, 20)
            shard = dict(group.processes)["shard2"]
            group.processes = [(name, process) for name, process in group.processes if process is not shard]
            shard.kill()
            shard.wait()
            self.await_steps(group, 20 + max(self.steps_of(group, rank) for rank in (0, 1)))
            open(stop, "w", encoding="ascii").close()
            group.wait(min(20 * SLOW, left()))
            ends = [re.search(r"^steps (\d+) wrong (\d+) ", self.log_of(group, rank), re.M) for rank in (0, 1)]
            led = [self.log_of(group, rank).count("copies lead its slots") for rank in (0, 1)]
        if None in ends or any(end[2] != "0" for end in ends) or led != [1, 1]:
            raise Failed(f"ends {ends}, {led} losses seen\n{self.log_of(group, 0)}")
        self.note = f"{ends[0][1]} steps, a shard killed, 0 wrong numbers"

    @staticmethod
    def log_of(group, rank):
        with open(group.log_path(f"worker{rank}"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def steps_of(self, group, rank):
        return max([int(step) for step in re.findall(r"^step (\d+)$", self.log_of(group, rank), re.M)] or [0])

    def await_steps(self, group, steps):
        """Waits until both workers have reported that many."""
        until = time.monotonic() + min(30 * SLOW, left())
        while any(self.steps_of(group, rank) < steps for rank in (0, 1)):
            ended = [name for name, process in group.processes if process.poll() is not None]
            if ended or time.monotonic() > until:
                raise Failed(f"no step {steps}; ended: {ended}\n{self.log_of(group, 0)}\n{self.log_of(group, 1)}")
            time.sleep(0.1)

    def conformance_fault_verbs(self):
        """Behind the wrapper that injects faults."""
        self.conformance("fault-verbs")

    def conformance_delay_verbs(self):
        """Behind the wrapper that delays."""
        self.conformance("delay-verbs")

    def conformance_trace_verbs(self):
        """Behind the wrapper that writes a trace."""
        self.conformance("trace-verbs")

    def verbs_backend(self):
        """Features of verbs only: several lanes, small windows, revoked keys, a stale write, queue pairs that fail under load."""
        self.cases(["tests/transport/test_verbs"], 20, {"WEFT_TEST_DEVICES": " ".join(self.devices)})

    def nccl_points_verbs(self):
        """NCCL's network plugin over verbs: connections, sizes, order, groups, the end with open requests, a killed peer, CollNet."""
        harness, plugin = (os.path.join(self.build, part) for part in ("tests/nccl/nccl_harness", "nccl/libnccl-net-weft.so"))
        if not os.path.exists(harness) or not os.path.exists(plugin):
            raise Skipped("the harness or the plugin is not built")
        points = "table,properties,handle,either-order,self,sizes,order,groups,full,abort,dies-between,coll-full"
        output = execute([harness, "--plugin", plugin, "--points", points, "--limit", str(10 * SLOW)], 15 * SLOW,
                         {"WEFT_TRANSPORT_BACKEND": "verbs", "WEFT_TRANSPORT_DEVICES": self.devices[0], "WEFT_NCCL_DEADLINE": "5s"})
        self.note = output.splitlines()[-1]

    def nccl_direct_verbs(self):
        """NCCL's network plugin on device memory: a memory file in the place of a dma-buf; the processor touches no byte of a payload."""
        harness, plugin, module, runtime = (os.path.join(self.build, part) for part in (
            "tests/nccl/nccl_harness", "nccl/libnccl-net-weft.so", "tests/transport/libweft_verbs.so", "tests/lib/libfake_cudart.so"))
        if not all(map(os.path.exists, (harness, plugin, module, runtime))):
            raise Skipped("the harness, the plugin or a stand-in is not built")
        output = execute([harness, "--plugin", plugin, "--points", "direct,direct-abort,direct-refused", "--limit", str(10 * SLOW)], 15 * SLOW,
                         {"WEFT_TRANSPORT_BACKEND": "verbs", "WEFT_TRANSPORT_DEVICES": self.devices[0], "WEFT_NCCL_DEADLINE": "5s",
                          "WEFT_MODULE_DIR": os.path.dirname(module), "WEFT_CUDA_RUNTIME": runtime})
        if "skipped" in output:
            raise Failed(output)
        self.note = output.splitlines()[-1]

    def processes_verbs(self):
        """Two endpoints in two processes: every size, a flood in order, windows."""
        self.cases(["tests/transport/test_processes", "verbs"], 20, {"WEFT_TEST_DEVICES": " ".join(self.devices)})

    def death_verbs(self):
        """The other process is killed at each step of an operation."""
        self.cases(["tests/transport/test_death", "verbs"], 20, {"WEFT_TEST_DEVICES": " ".join(self.devices)})

    def faults_verbs(self):
        """Traffic while queue pairs are forced into error; on the pair, while the wire loses, delays, reorders, doubles and
        damages packets, is cut and restored, is cut permanently, drops everything."""
        self.cases(["tests/transport/test_verbs_faults"], 25, {"WEFT_TEST_DEVICES": " ".join(self.devices), **self.wire()})

    def rails_verbs(self):
        """Two rails, one of them cut: traffic continues over the other."""
        self.cases(["tests/transport/test_verbs_faults", "test_rail*"], 10, {"WEFT_TEST_DEVICES": "rxe0,rxe2 rxe1,rxe3", **self.wire(), "WEFT_TEST_SECOND_WIRE": "veth2"})

    # --- what the verbs backend costs ---

    def packets(self):
        total = 0
        for path in glob.glob("/sys/class/infiniband/*/ports/1/hw_counters/sent_pkts"):
            with open(path, encoding="ascii") as file:
                total += int(file.read())
        return total

    def traced(self, words, seconds, environment=None):
        """(output, system calls, packets) of a program."""
        counts = self.path("calls")
        before = self.packets()
        output = execute(["strace", "-f", "-c", "-o", counts] + words, seconds * SLOW, environment)
        with open(counts, encoding="ascii") as file:
            total = [line.split() for line in file if line.rstrip().endswith("total")]
        return output, int(total[0][3]), self.packets() - before

    def perftest(self, writes):
        """System calls of the client and packets of ib_write_bw with `writes` writes of 64 KiB."""
        words = ["ib_write_bw", "-F", "-x", "1", "-s", "65536", "-n", str(writes)]
        server = subprocess.Popen(words + ["-d", self.devices[0]], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            until = time.monotonic() + min(10 * SLOW, left())
            while ":18515 " not in execute(["ss", "-ltn"], 10 * SLOW) and time.monotonic() < until:
                time.sleep(0.1)
            _, calls, packets = self.traced(words + ["-d", self.devices[-1], "127.0.0.1"], 10)
            server.wait(min(10 * SLOW, left()))
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()
        return calls, packets

    def cost(self, mebibytes):
        """What test_verbs --cost counts for one message so large, with the system calls and packets of the whole run."""
        path = os.path.join(self.build, "tests/transport/test_verbs")
        if not os.path.exists(path):
            raise Skipped("tests/transport/test_verbs is not built")
        output, calls, packets = self.traced([path, "--cost", str(mebibytes << 20)], 20, {"WEFT_TEST_DEVICES": " ".join(self.devices)})
        words = next(line for line in output.splitlines() if line.startswith("bytes ")).split()[3:]
        return {name: float(value) for name, value in zip(words[::2], words[1::2])}, calls, packets

    def counters(self):
        """Work and packets for each MiB, against those of ib_write_bw with writes of the same 64 KiB (one work request and doorbell each,
        one of a hundred signalled). Start-up is left out by taking the difference of two runs. Times mean nothing here; these
        counts hardly depend on the machine. The soft link sometimes drops a packet, which is sent again: a count that is too
        high is measured a second time."""
        for program in ("strace", "ib_write_bw", "ss"):
            if not shutil.which(program):
                raise Skipped(f"{program} is not installed (tools/install-packages --full)")
        theirs, ours = self.counted()
        if self.over(theirs, ours):
            theirs, ours = self.counted()
        print(f"  {'for each MiB':<16}{'ib_write_bw':>12}{'weft':>10}")
        for name, value in theirs.items():
            print(f"  {name:<16}{value:12.2f}{ours[name]:10.2f}", flush=True)
        self.note = "for each MiB, ours/ib_write_bw's: " + ", ".join(f"{name} {ours[name]:.2f}/{value:.2f}" for name, value in theirs.items())
        if self.over(theirs, ours):
            raise Failed(f"more than 5 % above ib_write_bw: {', '.join(self.over(theirs, ours))} ({self.note})")

    def counted(self):
        few, many = self.perftest(256), self.perftest(768)
        theirs = {"work requests": 16.0, "doorbells": 16.0, "signalled": 0.16, "copied bytes": 0.0}
        theirs.update({"system calls": (many[0] - few[0]) / 32, "packets": (many[1] - few[1]) / 32})
        small, large = self.cost(64), self.cost(128)  # one to warm up, one that is counted
        ours = {"work requests": large[0]["work_requests"], "doorbells": large[0]["doorbells"], "signalled": large[0]["signalled"],
                "copied bytes": large[0]["copied"], "system calls": (large[1] - small[1]) / 128, "packets": (large[2] - small[2]) / 128}
        return theirs, ours

    @staticmethod
    def over(theirs, ours):
        return [name for name, value in theirs.items() if ours[name] > 1.05 * value]

    # --- the main job ---

    def train(self, name, environment, of_shards, of_workers, workers_tune=None):
        """A few steps of the trainer on two shards and two workers, each with its devices; returns the output that must not depend on the transport."""
        directory = self.path(name)
        os.makedirs(directory, exist_ok=True)
        tune = ["WEFT_TRANSPORT_TUNE=" + workers_tune] if workers_tune else []
        trainer = ["env", "WEFT_TRANSPORT_DEVICES=" + of_workers, *tune, self.programs.trainer, "--steps", str(STEPS), "--hidden", "64", "--batch", "64",
                   "--eval-every", "10", "--csv", os.path.join(directory, "csv"), "--hash-steps", os.path.join(directory, "hash")]
        secret = os.path.join(directory, "secret")
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write("0123456789abcdef0123456789abcdef")
        environment = {**environment, "OPENBLAS_NUM_THREADS": "1", "WEFT_SECRET_FILE": secret, "WEFT_TRANSPORT_DEVICES": of_shards}
        with jobs.Group(directory) as group:
            jobs.start_by_hand(self.programs, group, 2, 2, trainer, environment=environment)
            group.wait(min(45 * SLOW, left()))
        return self.losses(directory)

    @staticmethod
    def losses(directory):
        """Losses and accuracy of every evaluation and the hash of all weights after every step, as text."""
        with open(os.path.join(directory, "csv"), newline="", encoding="ascii") as file:
            kept = [[row[name] for name in ("step", "train_loss", "test_loss", "accuracy")] for row in csv.DictReader(file)]
        for path in sorted(glob.glob(os.path.join(directory, "hash.*"))):
            with open(path, encoding="ascii") as file:
                kept.append(file.read())
        if len(kept) < 4 or len(kept[-1].splitlines()) != STEPS:
            raise Failed(f"the reports are not complete: {kept}")
        return kept

    def same_as_tcp(self, name, environment, workers_tune=None):
        """Shards on the first device, workers on the last."""
        if not self.tcp:
            self.tcp = self.train("tcp", {"WEFT_TRANSPORT_BACKEND": "ucx"}, "lo", "lo")
        losses = self.train(name, environment, self.devices[0] + ":1", self.devices[-1] + ":1", workers_tune)
        if losses != self.tcp:
            raise Failed(f"losses or weights differ from those over tcp:\n{losses}\n{self.tcp}")
        self.note = f"{STEPS} steps, losses and weights equal to tcp's; last test loss {losses[-3][2]}"

    def main_job_ucx_verbs(self):
        """Training over UCX on verbs gives the same text as over tcp."""
        self.same_as_tcp("ucx-verbs", {**UCX_VERBS, "WEFT_TRANSPORT_BACKEND": "ucx", "WEFT_TRANSPORT_LANES": UCX_VERBS["UCX_TLS"]})

    def main_job_verbs(self):
        """Training over the verbs backend gives the same text as over tcp."""
        self.same_as_tcp("verbs", {"WEFT_TRANSPORT_BACKEND": "verbs"})

    def main_job_auto(self):
        """Training over auto: workers use shared memory between them, and verbs to the shards, which have none."""
        self.same_as_tcp("auto", {"WEFT_TRANSPORT_BACKEND": "auto", "WEFT_TRANSPORT_TUNE": "use=verbs"}, "use=shm+verbs")

    def all(self):
        """The checks of this setup; checks that do not depend on the devices run in one setup only."""
        both = [self.devices_are_up, self.device_half, self.failover_verbs, self.connection_manager, self.conformance_verbs,
                self.conformance_verbs_lanes, self.verbs_backend, self.faults_verbs, self.processes_verbs, self.death_verbs]
        last = [self.main_job_verbs, self.conformance_ucx_verbs, self.remote_access_ucx_verbs, self.main_job_ucx_verbs]
        if self.setup == "pair":
            return both + [self.rails_verbs, self.conformance_auto_verbs, self.auto_device_goes, self.conformance_verbs_cm, self.main_job_auto] + last
        return both[:3] + [self.nccl_points_verbs, self.nccl_direct_verbs] + both[3:] + [self.p2p_and_doctor] + [self.conformance_fault_verbs, self.conformance_delay_verbs, self.conformance_trace_verbs, self.counters] + last


FAULT = re.compile(r"^\[  (ERROR|FAILED) |Assertion|Sanitizer|error: ")


def excerpt(lines, around=20, end=40):
    """The lines about the first fault, and the last lines."""
    tail = max(0, len(lines) - end)
    fault = next((number for number, line in enumerate(lines[:tail]) if FAULT.search(line)), None)
    kept = set(range(tail, len(lines)))
    if fault is not None:
        kept.update(range(max(0, fault - around), min(fault + around, len(lines))))
    shown = []
    for number in sorted(kept):
        if number > 0 and number - 1 not in kept:
            shown.append("...")
        shown.append(lines[number])
    return shown


def outcome_of(check, checks):
    """(outcome, words, output)"""
    if time.monotonic() >= DEADLINE:
        return "not run", "the time of this suite was over", ""
    try:
        check()
        return "ok", checks.note, ""
    except Skipped as reason:
        return "skipped", str(reason), ""
    except (Failed, jobs.JobFailed, OSError, ValueError, KeyError, AttributeError) as error:
        if time.monotonic() >= DEADLINE:
            return "not run", "it was cut short: the time of this suite was over", ""
        lines = (str(error) or repr(error)).splitlines()
        checks.heal()
        return "FAILED", lines[0], "\n".join(excerpt(lines))


def run(checks, check, results):
    shutil.rmtree(checks.scratch, ignore_errors=True)
    os.makedirs(checks.scratch)
    checks.note = ""
    started = time.monotonic()
    outcome, words, output = outcome_of(check, checks)
    name = check.__name__.replace("_", " ")
    seconds = time.monotonic() - started
    results.append({"name": f"{checks.setup}: {name}", "outcome": outcome, "seconds": round(seconds, 1), "words": words, "output": output})
    print(f"{checks.setup:<5}{outcome:<8}{seconds:6.1f} s  {name:<28}{words}", flush=True)


def main(build, setup, out, seconds, names):
    global DEADLINE
    DEADLINE = time.monotonic() + float(seconds)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    checks = Checks(build, setup)
    results = []
    for check in checks.all():
        if not names or check.__name__ in names:
            run(checks, check, results)
            with open(os.path.join(out, "results.json"), "w", encoding="utf-8") as file:
                json.dump(results, file)
    return 1 if any(result["outcome"] == "FAILED" for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5], sys.argv[5:]))
