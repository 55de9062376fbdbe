"""Jobs whose coordinator is in the library of rank 0: environments of launchers, and no weft run and no weftd."""

import os
import shutil
import socket
import subprocess
import unittest

import harness
import netns

LAUNCHED = os.path.join(harness.BUILD, "tests", "client", "launched")
STEP = 1000  # between two ports of the list (base/config/launcher.h)
PORTS = 4
WHOLE = ["init", "sum", "finalize"]


def listen(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


def free_master_port():
    """A MASTER_PORT whose list of ports is free, below the range of ports that the kernel assigns."""
    for port in range(20000 + os.getpid() % 900, 27000, 7):
        try:
            for k in range(PORTS + 1):
                listen(port + k * STEP).close()
            return port
        except OSError:
            continue
    raise OSError("no list of ports is free")


def plain(rank, ranks, port):
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


class LaunchedTest(harness.JobTest):
    def setUp(self):
        super().setUp()
        self.port = free_master_port()
        self.processes = []

    def tearDown(self):
        for process in self.processes:
            process.kill()
            process.communicate()
        super().tearDown()

    def start(self, environment, words, command=(LAUNCHED,)):
        inherited = {name: value for name, value in os.environ.items() if name not in harness.jobs.JOB_VARIABLES}
        process = subprocess.Popen([*command, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, env={**inherited, "WEFT_DEADLINE_MS": "30000", **environment})
        self.processes.append(process)
        return process

    def ended(self, process, status=0):
        output, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, status, output)
        return output

    def held(self, process):
        """Waits until the process prints that it holds."""
        lines = []
        for line in process.stdout:
            if line.strip() == "held":
                return
            lines.append(line)
        self.fail("ended early: " + "".join(lines))

    @staticmethod
    def release(process):
        process.stdin.close()
        process.stdin = None

    def wait_for_log(self, process, words):
        for line in process.stdout:
            if words in line:
                return line
        self.fail(f"no line with {words}")

    def run_ranks(self, ranks, environment_of, words=WHOLE):
        processes = [self.start(environment_of(rank), words) for rank in range(ranks)]
        return [self.ended(process) for process in processes]

    # --- environments ---

    def test_plain_environment(self):
        for ranks in (1, 2, 4):
            with self.subTest(ranks=ranks):
                self.run_ranks(ranks, lambda rank: plain(rank, ranks, self.port))

    def test_torchrun_on_one_host(self):
        """torchrun gives the name of the host, at which weft would not listen without a secret."""
        def environment(rank):
            return {**plain(rank, 2, self.port), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": socket.gethostname(),
                    "TORCHELASTIC_RUN_ID": "none"}
        self.run_ranks(2, environment)

    def test_variables_of_weft(self):
        def environment(rank):
            return {"WEFT_RANK": str(rank), "WEFT_RANKS": "2", "WEFT_COORDINATOR": f"127.0.0.1:{self.port}", "WEFT_JOB": "by-hand"}
        self.run_ranks(2, environment)
        without_rank = self.start({**environment(0), "WEFT_RANK": ""}, WHOLE)
        self.assertIn("WEFT_RANKS=2 is set and this process has no rank; set WEFT_RANK", self.ended(without_rank, 3))
        beyond = self.start({**environment(0), "WEFT_RANK": "2"}, WHOLE)
        self.assertIn("rank 2 is set, and 2 ranks by WEFT_RANKS; the rank is a number from 0 to 1", self.ended(beyond, 3))

    def test_ordinals_of_kubernetes(self):
        """The rank is the index of an indexed Job, or the ordinal of a StatefulSet."""
        common = {"WEFT_RANKS": "2", "WEFT_COORDINATOR": f"127.0.0.1:{self.port}", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
        for name, of in (("job", lambda rank: {"JOB_COMPLETION_INDEX": str(rank)}), ("set", lambda rank: {"HOSTNAME": f"train-{rank}"})):
            with self.subTest(name=name):
                self.run_ranks(2, lambda rank: {**common, **of(rank), "WEFT_JOB": name})
        del common["WEFT_COORDINATOR"]
        text = self.ended(self.start({**common, "HOSTNAME": "train-1"}, WHOLE), 3)
        self.assertIn("no coordinator given, and the variables of Kubernetes do not locate rank 0", text)

    def test_ordinals_of_shards(self):
        """A weftd in pod 1 would coordinate a second job; with --coordinator it is shard 1."""
        pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "weftd-1"}
        text = self.ended(self.start(pod, ["--shards", "2", "--port", str(self.port)], [harness.PROGRAMS.weftd]), 2)
        self.assertIn("HOSTNAME=weftd-1 makes this shard 1 of 2, and only shard 0 coordinates; set WEFT_HEADLESS_SERVICE, or give --coordinator", text)
        service = {**pod, "WEFT_HEADLESS_SERVICE": "svc.invalid"}
        text = self.ended(self.start(service, ["--shards", "2"], [harness.PROGRAMS.weftd]), 2)
        self.assertIn("gives the host of the coordinator, weftd-0.svc.invalid; give its --port on all shards", text)
        shard1 = self.start(service, ["--shards", "2", "--port", str(self.port)], [harness.PROGRAMS.weftd])
        self.wait_for_log(shard1, f"no connection to weftd-0.svc.invalid:{self.port} yet")
        shard1.kill()
        ports = self.path("ports")
        shard0 = self.start({**pod, "HOSTNAME": "weftd-0"}, ["--shards", "3", "--port-file", ports], [harness.PROGRAMS.weftd])
        while not os.path.exists(ports):
            self.assertIsNone(shard0.poll())
        with open(ports) as file:
            coordinator = file.readline().strip().split("=")[1]
        shard2 = self.start({**pod, "HOSTNAME": "weftd-2"}, ["--coordinator", coordinator], [harness.PROGRAMS.weftd])
        self.wait_for_log(shard2, "shard 2 waits for the job to begin")
        shard2.kill()
        text = self.ended(shard0, 1)
        self.assertIn("shard 2 (", text)  # lost

    def test_shards_under_a_launcher(self):
        """Each of the processes would start a job of its own: refused with the reason."""
        text = self.ended(self.start(plain(0, 2, self.port), ["run", "-s", "2", "--", "true"], [harness.PROGRAMS.weft]), 2)
        self.assertIn("torchrun started 2 processes of this command, and -s would start a job with shards in each; start the shards by hand", text)

    def test_srun(self):
        def environment(rank):
            return {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0",
                    "SLURM_STEP_NUM_NODES": "1"}
        self.run_ranks(2, environment)

    def test_mpirun(self):
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        for mpirun, options in (("mpirun.openmpi", ["--oversubscribe"]), ("mpirun.mpich", [])):
            with self.subTest(mpirun=mpirun):
                if not shutil.which(mpirun):
                    self.skipTest(f"{mpirun} is not installed")
                output = self.ended(self.start(root, WHOLE, [mpirun, *options, "-n", "3", LAUNCHED]))
                self.assertEqual(output.count("done"), 3, output)

    def test_two_hosts(self):
        """Two hosts of Slurm: the first of the list coordinates; beyond loopback the job has a secret."""
        reason = netns.allowed()
        if reason:
            self.skipTest(f"no network namespaces: {reason}")
        with netns.Network(["host0", "host1"], "10gbit") as network:
            def environment(rank):
                return {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0",
                        "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": network.address("host0"), "WEFT_SECRET": "a secret of the job",
                        "WEFT_TRANSPORT_DEVICES": netns.DEVICE, "WEFT_TRANSPORT_BACKEND": "tcp"}
            ranks = [self.start(environment(rank), WHOLE, network.command(f"host{rank}", [LAUNCHED])) for rank in range(2)]
            for process in ranks:
                self.ended(process)

    def test_two_jobs_with_neighbouring_ports(self):
        """MASTER_PORT and the port after it: the first job leaves the second one's port free."""
        first = [self.start(plain(rank, 2, self.port), ["init", "hold", "sum", "finalize"]) for rank in range(2)]
        for process in first:
            self.held(process)
        listen(self.port + 1).close()
        self.run_ranks(2, lambda rank: plain(rank, 2, self.port + 1))
        for process in first:
            self.release(process)
        for process in first:
            self.ended(process)

    # --- ports in use ---

    def test_a_port_in_use_is_passed_over(self):
        silent = listen(self.port + STEP)  # accepts connections, and answers nothing
        self.run_ranks(2, lambda rank: plain(rank, 2, self.port))
        silent.close()

    def test_all_ports_in_use(self):
        listeners = [listen(self.port + k * STEP) for k in range(1, PORTS + 1)]
        output = self.ended(self.start(plain(0, 2, self.port), WHOLE), 3)
        self.assertRegex(output, rf"WEFT_ERR_EXISTS: weft_init: rank 0 cannot coordinate job torchrun-{self.port}: at 127.0.0.1 other "
                                 rf"processes listen at every port of {self.port + STEP}, .*set another MASTER_PORT in every process")
        for listener in listeners:
            listener.close()

    def test_a_given_port_in_use(self):
        listener = listen(self.port)
        output = self.ended(self.start({"WEFT_RANK": "0", "WEFT_RANKS": "2", "WEFT_COORDINATOR": f"127.0.0.1:{self.port}"}, WHOLE), 3)
        self.assertRegex(output, rf"every port of {self.port} .*set another port in WEFT_COORDINATOR in every process")
        listener.close()

    def test_rank_0_joins_a_coordinator_that_waits(self):
        """A weftd with shards at the address of the launcher coordinates, and the ranks join it."""
        job = f"torchrun-{self.port}"
        weftd = self.start({}, ["--job", job, "--workers", "2", "--shards", "1", "--port", str(self.port + STEP), "--port-file", self.path("ports")],
                           [harness.PROGRAMS.weftd])
        self.wait_for_log(weftd, "rank 0, rank 1 have not joined")
        self.run_ranks(2, lambda rank: plain(rank, 2, self.port))
        self.ended(weftd)

    # --- sessions ---

    def test_sessions_one_after_another(self):
        self.run_ranks(3, lambda rank: plain(rank, 3, self.port), WHOLE * 4)

    def test_two_sessions_at_once(self):
        words = ["init", "sum", "named", "sum", "init", "sum", "finalize", "sum", "finalize", "finalize"]
        self.run_ranks(2, lambda rank: plain(rank, 2, self.port), words)

    def test_two_ranks_in_one_process(self):
        """One thread finalises both: rank 0 first, and its coordinator stays until rank 1 leaves."""
        process = self.start(plain(0, 2, self.port), ["pair", "finalize", "finalize"] * 2)
        self.assertNotIn("has waited", self.ended(process))

    def test_the_name_of_the_host_with_a_secret(self):
        """A name of loopback on this host: rank 0 listens at every address, since other hosts know the name by another."""
        name = socket.gethostname()
        if not socket.gethostbyname(name).startswith("127."):
            self.skipTest(f"{name} is no name of loopback")
        environment = {"MASTER_ADDR": name, "WEFT_SECRET": "a secret of the job"}
        rank_0 = self.start({**plain(0, 2, self.port), **environment}, WHOLE)
        self.wait_for_log(rank_0, "rank 1 has not joined")
        with open("/proc/net/tcp") as file:
            self.assertIn(f"00000000:{self.port + STEP:04X} 00000000:0000 0A", file.read())
        self.ended(self.start({**plain(1, 2, self.port), **environment}, WHOLE))
        self.ended(rank_0)
        output = self.ended(self.start({**plain(0, 2, self.port), "MASTER_ADDR": name}, WHOLE), 3)
        self.assertIn(f"will not listen on {name} without a job secret", output)

    def test_rank_0_waits_for_the_others_in_weft_finalize(self):
        """Rank 0 leaves first; rank 1 uses the coordinator afterwards, in its own weft_finalize."""
        rank_0 = self.start(plain(0, 2, self.port), WHOLE)
        rank_1 = self.start(plain(1, 2, self.port), ["init", "sum", "hold", "finalize"])
        self.held(rank_1)
        self.assertIn("rank 1", self.wait_for_log(rank_0, "the coordinator has waited"))
        self.assertIsNone(rank_0.poll())
        self.ended(rank_1)
        self.ended(rank_0)

    # --- waiting and ends ---

    def test_rank_0_arrives_last(self):
        rank_1 = self.start(plain(1, 2, self.port), WHOLE)
        line = self.wait_for_log(rank_1, "in weft_init")
        self.assertRegex(line, rf"rank 1 has waited .* rank 0, which coordinates job torchrun-{self.port}, does not listen at 127.0.0.1 yet")
        rank_0 = self.start(plain(0, 2, self.port), WHOLE)
        self.ended(rank_1)
        self.ended(rank_0)

    def test_rank_0_does_not_arrive(self):
        output = self.ended(self.start({**plain(1, 2, self.port), "WEFT_DEADLINE_MS": "2500"}, WHOLE), 3)
        self.assertRegex(output, "WEFT_ERR_UNREACHABLE: weft_init: rank 0, which coordinates job .*did not listen at 127.0.0.1 .*within 2.5 s")

    def test_another_rank_does_not_arrive(self):
        output = self.ended(self.start({**plain(0, 2, self.port), "WEFT_DEADLINE_MS": "3000"}, WHOLE), 3)
        self.assertIn("rank 1 has not joined; 1 of 2 ranks is present: 0", output)
        self.assertIn("WEFT_ERR_DEADLINE", output)

    def test_rank_0_is_killed_before_all_have_joined(self):
        rank_0 = self.start(plain(0, 3, self.port), WHOLE)
        self.wait_for_log(rank_0, "rank 1, rank 2 have not joined")
        rank_1 = self.start(plain(1, 3, self.port), WHOLE)
        self.wait_for_log(rank_1, "rank 2 has not joined")
        harness.kill(rank_0)
        self.assertRegex(self.ended(rank_1, 3), "WEFT_ERR_PEER_LOST: weft_init: lost rank 0, which coordinates the job at 127.0.0.1")

    def test_rank_0_is_killed_after_all_have_joined(self):
        rank_0 = self.start(plain(0, 2, self.port), ["init", "hold"])
        rank_1 = self.start(plain(1, 2, self.port), ["init", "hold", "sum", "finalize"])
        self.held(rank_0)
        self.held(rank_1)
        harness.kill(rank_0)
        self.assertRegex(self.ended(rank_1, 3), r"sum: WEFT_ERR_PEER_LOST: .*rank 0 \(")

    def test_rank_0_exits_without_finalize(self):
        leaves = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}
        rank_0 = self.start({**plain(0, 2, self.port), **leaves}, ["init", "sum", "exit"])
        rank_1 = self.start(plain(1, 2, self.port), ["init", "sum", "sum"])
        self.ended(rank_0)
        self.assertRegex(self.ended(rank_1, 3), r"sum: WEFT_ERR_PEER_LOST: .*rank 0 \(")

    def test_a_child_of_rank_0(self):
        """A child that outlives rank 0 keeps neither the job nor the port: the next job begins."""
        rank_0 = self.start(plain(0, 2, self.port), ["init", "fork", "sum", "finalize"])
        rank_1 = self.start(plain(1, 2, self.port), WHOLE)
        self.held(rank_0)  # the child holds
        self.ended(rank_1)
        self.assertEqual(rank_0.wait(timeout=60), 0)
        self.run_ranks(2, lambda rank: plain(rank, 2, self.port))


if __name__ == "__main__":
    harness.main()
