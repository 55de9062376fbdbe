"""test_bench.py - weft bench starts its processes and reports no wrong element for any type in every format; the small
examples run."""

import calendar
import ctypes
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import harness

KEYS = {"op", "plan", "transport", "redop", "p95_us", "cpu_us_per_op", "pss_bytes", "ranks", "dtype", "bytes", "count", "time_us", "algbw_GBps", "busbw_GBps", "wrong", "iters", "p50_us", "p99_us"}

# Of one command: only a command that hangs needs so long, also on a machine with ten times its load.
SECONDS = 500
PR_SET_THP_DISABLE = 41


def small_pages():
    """In a child before exec: disables transparent huge pages, which would round its memory up by megabytes."""
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)


class Bench(harness.JobTest):
    def bench(self, *words, **how):
        done = subprocess.run([harness.PROGRAMS.weft, "bench", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=SECONDS, **how)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def rows(self, *words):
        rows = [json.loads(line) for line in self.bench(*words, "--iters", "3", "--warmup", "1", "--json").splitlines()]
        for row in rows:
            self.assertLessEqual(KEYS, set(row))
            self.assertEqual(row["wrong"], 0)
            self.assertGreater(row["time_us"], 0)
        return rows

    def test_all_reduce_types(self):
        for dtype, size in (("f32", 4), ("f16", 2), ("bf16", 2), ("i64", 8)):
            with self.subTest(dtype=dtype):
                rows = self.rows("all_reduce", "-n", "3", "-b", "8", "-e", "3M", "-f", "50", "-d", dtype)
                self.assertEqual([row["bytes"] for row in rows], [8, 400, 20000, 1000000])
                self.assertEqual([row["count"] * size for row in rows], [row["bytes"] for row in rows])
                self.assertEqual({row["ranks"] for row in rows}, {3})

    def test_all_reduce_plans(self):
        for plan in ("direct", "ring"):
            for op in ("sum", "avg"):
                with self.subTest(plan=plan, op=op):
                    rows = self.rows("all_reduce", "-n", "3", "-b", "4", "-e", "2M", "-f", "97", "--plan", plan, "-o", op)
                    self.assertEqual({row["plan"] for row in rows}, {plan})
                    self.assertEqual(len(rows), 3)

    def test_operations(self):
        """Every operation, out of place and in place; sizes that no rank count divides; the formulas of nccl-tests."""
        ranks, whole = 3, 1
        others = (ranks - 1) / ranks
        factors = {"all_reduce": 2 * others, "reduce_scatter": others, "reduce_scatter_v": others, "all_gather": others, "all_gather_v": others,
                   "broadcast": whole, "reduce": whole, "gather": others, "gather_v": others, "scatter": others, "scatter_v": others,
                   "all_to_all": others, "all_to_all_v": others, "sendrecv": whole}
        for name, factor in factors.items():
            with self.subTest(operation=name):
                rows = self.rows(name, "-n", str(ranks), "-b", "100", "-e", "1M", "-f", "91", "-c", "2")
                self.assertEqual(len(rows), 3 if rows[0]["bytes"] > 50 else 4)
                for row in rows:
                    self.assertAlmostEqual(row["busbw_GBps"], row["algbw_GBps"] * factor, delta=1e-5 * row["busbw_GBps"] + 1e-9)
                    self.assertAlmostEqual(row["algbw_GBps"], 1e-3 * row["bytes"] / row["time_us"], delta=1e-5 * row["algbw_GBps"])
                    self.assertGreater(row["pss_bytes"], 0)
        for name in ("all_gather", "broadcast"):  # larger than the caches, at an odd address
            self.rows(name, "-n", "3", "-b", "9999999", "-e", "9999999", "-d", "u8")
        self.assertEqual([row["bytes"] for row in self.rows("barrier", "-n", "3")], [0])
        self.assertEqual([row["root"] for row in self.rows("broadcast", "-n", "3", "-e", "8", "-r", "all")], [0, 1, 2])

    def test_types_and_reductions(self):
        """Each type with each reduction it supports, and one that it does not."""
        for name, count in (("all_reduce", 84), ("reduce_scatter", 78)):
            rows = self.rows(name, "-n", "2", "-b", "600", "-e", "600", "-d", "all", "-o", "all")
            self.assertEqual(len({(row["dtype"], row["redop"]) for row in rows}), len(rows))
            self.assertEqual(len(rows), count)
        done = subprocess.run([harness.PROGRAMS.weft, "bench", "reduce", "-n", "2", "-o", "xor", "-e", "8"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=SECONDS)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("op xor has no dtype f32", done.stderr)

    def test_columns_and_plots(self):
        words = ["-n", "2", "-b", "64", "-e", "4K", "-f", "8", "--iters", "4", "--memory", "plain"]
        table = self.bench("all_gather", *words, "--percentiles", "--overlap", "-C", "-a", "3", "--plot", self.path("a.svg"))
        for word in ("p50", "p95", "p99", "overlap", "compute", "CPU", "Pss"):
            self.assertIn(word, table)
        with open(self.path("a.svg"), encoding="utf-8") as file:
            self.assertIn("busbw", file.read())
        done = subprocess.run([harness.PROGRAMS.weft, "bench", "all_gather", *words, "--plot", self.path("no/a.svg")], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("no/a.svg cannot be written: No such file or directory", done.stderr)
        self.assertEqual(done.stdout, "")  # before anything is measured
        row = self.rows("all_reduce", *words, "--overlap", "-e", "64")[0]
        self.assertTrue(0 <= row["overlap"]["percent"] <= 100)
        limit = self.rows("all_reduce", *words, "--limit", "-e", "64")[0]["limit"]
        self.assertTrue(limit["time_us"] > 0 and limit["memory_GBps"] > 0 and limit["percent"] > 0)
        self.assertIn("of limit", self.bench("all_reduce", *words, "--limit", "-e", "64"))
        self.assertTrue(row["min_us"] <= row["p50_us"] <= row["p95_us"] <= row["p99_us"] <= row["max_us"])
        for more in (["-m", "4"], ["-z", "1", "-m", "2", "-a", "0"]):
            self.assertEqual({row["wrong"] for row in self.rows("all_reduce", *words, *more)}, {0})
        self.rows("push_pull", "-n", "2", "-s", "1", "-b", "64K", "-e", "64K", "-a", "3")
        table = self.bench("all_reduce", *words, "-c", "0")
        self.assertIn("N/A", table)

    def test_names_of_other_suites(self):
        """A command line of nccl-tests by a link of that name, and under weft bench: the same rows, and where they are from."""
        link = self.path("all_reduce_perf")
        os.symlink(harness.PROGRAMS.weft, link)
        options = ["-b", "8", "-e", "64", "-f", "8", "-g", "2", "-n", "3", "-z", "1", "-G", "1"]
        for words in ([link], [harness.PROGRAMS.weft, "bench", "all_reduce_perf"]):
            done = subprocess.run([*words, *options, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = [json.loads(line) for line in done.stdout.splitlines()]
            self.assertEqual([(row["op"], row["ranks"], row["bytes"], row["iters"], row["wrong"]) for row in rows],
                             [("all_reduce", 2, size, 3, 0) for size in (8, 64)])
            self.assertIn("all_reduce_perf (nccl-tests): weft bench all_reduce", done.stderr)
            self.assertIn("without effect here: -G", done.stderr)
            version = subprocess.run([harness.PROGRAMS.weft, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1]
            for row in rows:
                self.assertEqual((row["host"], row["weft_version"]), (socket.gethostname(), version))
                self.assertRegex(row["git_revision"], r"^([0-9a-f]{12}(-dirty)?)?$")
                self.assertLess(abs(time.time() - calendar.timegm(time.strptime(row["date"], "%Y-%m-%dT%H:%M:%SZ"))), 600)
        table = subprocess.run([link, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=SECONDS).stdout
        self.assertRegex(table, r"(?m)^# Avg bus bandwidth    : [0-9.e+-]+ $")

    def test_every_name_has_a_counterpart(self):
        with open(os.path.join(harness.ROOT, "tools", "bench", "foreign", "foreign_names.c"), encoding="utf-8") as file:
            names = re.findall(r'^    \{"(\w+)", BENCH_', file.read(), flags=re.M)
        self.assertGreater(len(names), 40)
        for name in names:
            done = subprocess.run([harness.PROGRAMS.weft, "bench", name, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("usage: weft bench", done.stdout)

    def launched(self, ranks, environment_of, words):
        """Runs the same command `ranks` times as a launcher does: only the environment differs."""
        processes = [subprocess.Popen(words, env=dict(os.environ, **environment_of(rank)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      cwd=self.directory) for rank in range(ranks)]
        outputs = [process.communicate(timeout=SECONDS) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0] * ranks, outputs)
        return [output for output, _ in outputs]

    @staticmethod
    def two_free_ports():
        """The first of two adjacent ports below the ephemeral range, so that no other process gets them meanwhile."""
        for port in range(21000 + os.getpid() % 5000 * 2, 32000, 2):
            try:
                with socket.socket() as one, socket.socket() as two:
                    one.bind(("127.0.0.1", port))
                    two.bind(("127.0.0.1", port + 1))
                    return port
            except OSError:
                continue
        raise OSError("no two neighbouring ports are free")

    def test_launchers(self):
        """Environments of torchrun and srun, and Open MPI's and MPICH's mpirun where they are installed: one job without further options."""
        bench = [harness.PROGRAMS.weft, "bench", "all_gather", "-b", "1K", "-e", "1K", "--iters", "3", "--json"]
        example = [harness.PROGRAMS.weft, "run", "--", os.path.join(harness.BUILD, "examples", "01_all_reduce")]
        port = self.two_free_ports()

        def torchrun(rank):
            return {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

        def srun(rank):
            return {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}

        rows = self.launched(3, torchrun, bench)
        self.assertEqual([bool(row) for row in rows], [True, False, False])
        self.assertEqual({key: json.loads(rows[0])[key] for key in ("ranks", "wrong", "bytes")}, {"ranks": 3, "wrong": 0, "bytes": 1020})
        self.assertEqual(json.loads(self.launched(2, srun, bench)[0])["ranks"], 2)
        pair = [harness.PROGRAMS.weft, "bench", "osu_latency", "-m", "8:8", "-i", "20", "--transport", "tcp", "--json"]
        outputs = self.launched(2, srun, pair)  # one job, and not one for each process
        self.assertEqual([len(output.splitlines()) for output in outputs], [1, 0])
        self.assertEqual((json.loads(outputs[0])["ranks"], json.loads(outputs[0])["wrong"]), (2, 0))
        self.assertIn("of 2", self.launched(2, srun, example)[0])
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        for mpirun, words in (("mpirun.openmpi", ["--oversubscribe"]), ("mpirun.mpich", [])):
            if shutil.which(mpirun):
                with self.subTest(mpirun=mpirun):
                    self.assertEqual(json.loads(self.launched(1, lambda _: root, [mpirun, *words, "-n", "3", *bench])[0])["ranks"], 3)
                    self.assertIn("of 3", self.launched(1, lambda _: root, [mpirun, *words, "-n", "3", *example])[0])

    def test_replay(self):
        """Records of the calls of a job: replay from the files of all ranks, with gaps, from one file, and from files that mismatch."""
        directory = self.path("calls")
        os.mkdir(directory)
        words = [harness.PROGRAMS.weft, "bench", "sendrecv", "-n", "3", "-b", "1K", "-e", "64K", "-f", "64", "--iters", "5"]
        subprocess.run(words, env=dict(os.environ, WEFT_RECORDER_CALLS=directory), check=True, stdout=subprocess.DEVNULL, timeout=SECONDS)
        files = sorted(glob.glob(os.path.join(directory, "flight-*-rank?.json")))
        self.assertEqual(len(files), 3)
        for more in ([], ["--gaps", "original"], ["--repeat", "3"]):
            with self.subTest(more=more):
                rows = {row["kind"]: row for row in map(json.loads, self.bench("replay", directory, *more, "--json").splitlines())}
                self.assertLessEqual({"send", "recv", "barrier", "all_reduce"}, set(rows))
                times = 3 if "--repeat" in more else 1
                self.assertEqual(rows["send"]["calls"], times * 3 * 2 * (5 + 5 + 1))
                self.assertEqual({key: rows["send"][key] for key in ("calls", "total_bytes")}, {key: rows["recv"][key] for key in ("calls", "total_bytes")})
                self.assertTrue(all(row["time_us"] > 0 and row["ranks"] == 3 for row in rows.values()))
        kinds = {json.loads(line)["kind"] for line in self.bench("replay", files[1], "--json").splitlines()}  # whose sends match no other rank
        self.assertEqual(kinds, {"barrier", "all_reduce"})
        for words, sentence in ((["-n", "2", directory], "the record is of 3 ranks and this job has 2"), ([self.path("nowhere")], "No such file"),
                                ([harness.PROGRAMS.weft], "it is cut or damaged"), ([self.directory], "has no flight record of rank 0")):
            done = subprocess.run([harness.PROGRAMS.weft, "bench", "replay", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
            self.assertEqual(done.returncode, 1, words)
            self.assertIn(sentence, done.stderr)
        done = subprocess.run([harness.PROGRAMS.weft, "inspect", directory], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS)
        self.assertIn("every operation on record ended well", done.stdout)

    def replayed_groups(self, calls_of, only=""):
        """The rows of a replay of made-up records of four ranks, or of one of them that all follow (`only`, its file). calls_of(rank) yields
        (group, members, rank in it, ranks, sequence, kind, lengths...)."""
        directory = tempfile.mkdtemp(dir=self.directory)
        for rank in range(4):
            operations = []
            for group, members, place, ranks, sequence, kind, *lengths in calls_of(rank):
                at = 1000 * len(operations)
                operation = {"group": group, "epoch": 1, "rank": place, "ranks": ranks, "members": members, "sequence": sequence, "kind": kind, "count": 100,
                             "dtype": "f32", "op": "sum", "root": 1, "plan": "ring", "posted_ns": 1 + at, "started_ns": 2 + at, "ended_ns": 900 + at, "steps": 1,
                             "phase": "done", "status": "WEFT_OK"}
                operation.update(zip(("lengths", "lengths_out"), lengths))
                if kind in ("send", "recv"):
                    operation["root"] = 1 - place
                    del operation["sequence"]
                operations.append(operation)
            with open(os.path.join(directory, f"flight-made-rank{rank}.json"), "w") as file:
                json.dump({"weft_flight": 1, "job": "made", "rank": rank, "ranks": 4, "host": "h", "pid": 7, "now_ns": 10 ** 9, "status": "WEFT_OK", "text": "",
                           "operations": operations}, file)
        done = subprocess.run([harness.PROGRAMS.weft, "bench", "replay", os.path.join(directory, only), "--json"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=SECONDS)
        return done, {row["kind"]: row for row in map(json.loads, done.stdout.splitlines())}

    def test_replay_groups(self):
        """Groups of some ranks are created again; two without a common rank may share an id; lengths of unequal pieces are those of the record."""
        def mesh(rank):
            pair, column = rank // 2, rank % 2
            yield 1, 99, rank, 4, 0, "barrier"
            yield 2, 50 + pair, column, 2, 0, "all_reduce"
            yield 3, 60 + column, pair, 2, 0, "reduce_scatter", [1000, 24]
            yield 2, 50 + pair, column, 2, 0, "send" if column else "recv"
            yield 2, 50 + pair, column, 2, 1, "gather", *([[10, 30]] if column else [[10]])
            yield 1, 99, rank, 4, 1, "all_to_all", [(rank + to) % 3 for to in range(4)], [(of + rank) % 3 for of in range(4)]
        done, rows = self.replayed_groups(mesh)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({kind: row["calls"] for kind, row in rows.items()},
                         {"barrier": 4, "all_reduce": 4, "reduce_scatter": 4, "send": 2, "recv": 2, "gather": 4, "all_to_all": 4})
        self.assertEqual(rows["reduce_scatter"]["total_bytes"], 4 * 4 * 1024)
        self.assertEqual(rows["gather"]["total_bytes"], 2 * (40 + 160))

        def unequal(rank):  # arguments that differ between ranks are not in the record of one rank
            yield 1, 99, rank, 4, 0, "gather", *([[10, 30, 20, 40]] if rank == 1 else [[10 * rank]])
            yield 1, 99, rank, 4, 1, "all_gather", [1, 2, 3, 4]
            yield 1, 99, rank, 4, 2, "all_to_all", [1, 2, 3, 4], [5, 6, 7, 8]
        for rank in (0, 1):
            done, rows = self.replayed_groups(unequal, f"flight-made-rank{rank}.json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual({kind: row["calls"] for kind, row in rows.items()}, {"all_gather": 4})

        def partial(rank):  # the record of rank 3 lacks its calls in the group of three, and that of rank 2 its first barrier
            if rank != 2:
                yield 1, 99, rank, 4, 0, "barrier"
            if rank in (0, 1):
                yield 2, 70, rank, 3, 0, "all_reduce"
            yield 1, 99, rank, 4, 1, "barrier"
        done, rows = self.replayed_groups(partial)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({kind: row["calls"] for kind, row in rows.items()}, {"barrier": 4})

        done, rows = self.replayed_groups(lambda rank: [(1, 99, rank, 4, 0, "all_gather", [1, 2, 3])])
        self.assertEqual((done.returncode, rows), (1, {}))
        self.assertIn("the field 'lengths' of its operation 0 cannot be", done.stderr)
        done, rows = self.replayed_groups(lambda rank: [(1, 99, rank, 4, 0, "all_gather", [1, 2, 3, 2 ** 62])])
        self.assertIn("the field 'lengths' of its operation 0 cannot be", done.stderr)

    def test_push_pull(self):
        rows = self.rows("push_pull", "-n", "2", "-s", "2", "-b", "4", "-e", "9M", "-f", "1100")
        self.assertEqual([row["bytes"] for row in rows], [4, 4400, 4840000])

    def test_start(self):
        """The memory of a group per rank is small: most of it is shared by all groups."""
        if not harness.sanitized():
            row = json.loads(self.bench("start", "-n", "8", "--groups", "300", "--transport", "shm", "--json", preexec_fn=small_pages))
            self.assertLess((row["pss_groups_bytes"] - row["pss_bytes"]) / 300, 8448)  # and pages of rings that are touched over time
        row = json.loads(self.bench("start", "-n", "3", "--groups", "3", "--json"))
        self.assertEqual((row["ranks"], row["groups"]), (3, 3))
        self.assertTrue(0 < row["joined_s"] <= row["first_barrier_s"])
        self.assertTrue(0 < row["pss_began_bytes"] < row["pss_bytes"])
        if not harness.sanitized():
            self.assertLess(row["pss_bytes"], 16 << 20)

    def test_orders(self):
        rows = [json.loads(line) for line in self.bench("reduction-order", "-n", "3", "-e", "64K", "--rounds", "1", "--transport", "tcp", "--json").splitlines()]
        self.assertEqual(len(rows), 8)
        kinds = {row["kind"]: row for row in rows}
        self.assertEqual(kinds["f32, ring"]["plan_taken"], "ring")
        self.assertIn(kinds["f32, reproducible"]["plan_taken"], ("direct", "doubling", "halving"))
        self.assertTrue(all(row["time_us"] > 0 and row["ratio"] > 0 for row in rows))

    def test_calibrate(self):
        """Plans are chosen by the measured figures."""
        links = self.path("links")
        text = self.bench("calibrate", "-n", "2", "--write", links)
        self.assertIn("posting a message", text)
        with open(links) as file:
            table = file.read()
        self.assertRegex(table, r"(?m)^machine 0 [1-9]\d* [1-9]\d* [1-9]\d* 0 0$")
        self.assertRegex(table, r"(?m)^memory 0( [1-9]\d*){5} \d+ \d+ [1-9]\d*$")
        self.assertRegex(table, r"(?m)^link 0 0 works [1-9]\d* [1-9]\d* session\|")
        done = subprocess.run([harness.PROGRAMS.weft, "bench", "all_reduce", "-n", "2", "-b", "64K", "-e", "64K", "--iters", "2", "--explain"],
                              env={**os.environ, "WEFT_COLLECTIVE_LINKS": links}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("with measured latency", done.stdout)
        self.assertIn("in memory that all ranks map (measured: words", done.stdout)

    def test_one_host_is_explained(self):
        """On one host the operations use no messages, and --explain shows that."""
        for operation in ("reduce", "gather", "scatter", "all_to_all"):
            text = self.bench(operation, "-n", "2", "-b", "64K", "-e", "64K", "--iters", "2", "--transport", "shm", "--explain")
            self.assertRegex(text, operation + r": one-host [\d.]+ us, in memory that all ranks map \(assumed: words .*\); by messages it would be " + operation)

    def test_simulated_beside_measured(self):
        links = self.path("links")
        self.bench("calibrate", "-n", "2", "--transport", "tcp", "--write", links)
        done = subprocess.run([harness.PROGRAMS.weft, "sim", "-n", "2", "-b", "64K", "-p", "ring", "--links", links, "--compare", "tcp", "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual((found["plan"], found["wrong"]), ("ring", 0))
        self.assertGreater(found["measured_s"], 0)

    def test_waiting(self):
        done = self.bench("waiting", "-n", "2", "--iters", "2", "--piece-us", "100", "--json")
        rows = {row["measure"]: row for row in map(json.loads, done.splitlines())}
        self.assertEqual(set(rows), {"idle", "late", "busy"})
        self.assertTrue(all(row["ranks"] == 2 for row in rows.values()))
        self.assertGreater(rows["busy"]["throughput_ratio"], 0)

    def test_checks(self):
        for shards in (0, 1):
            done = self.bench("checks", "-n", "2", *(["-s", "1"] if shards else []), "--iters", "3", "-b", "4K", "-e", "8K", "-f", "2", "--json")
            rows = [json.loads(line) for line in done.splitlines()]
            self.assertEqual([(row["bytes"], row["check"]) for row in rows],
                             [(size, check) for size in (4096, 8192) for check in ("warning", "nonfinite", "copies", "weights", "pushed")])
            self.assertTrue(all(row["shards"] == shards and row["with_us"] > 0 and row["ratio"] > 0 for row in rows), rows)
        table = self.bench("checks", "-n", "2", "--iters", "1", "-b", "4K", "-e", "4K").splitlines()
        self.assertEqual(len(table), 7)

    def test_exposed(self):
        """The other ranks wait for a slow rank, and the slow rank waits for none; equal ranks and a step alone do not wait."""
        done = self.bench("exposed", "-n", "3", "--iters", "4", "--piece-us", "100", "--late-us", "40000", "-r", "1", "-b", "4K", "--json")
        rows = {(row["row"], row["of"]): row for row in map(json.loads, done.splitlines())}
        self.assertEqual(list(rows), [("alone", "all"), ("equal", "all"), ("slow", "others"), ("slow", "slow")])
        peers = {which: row["exposed_peers_us"] for which, row in rows.items()}
        self.assertEqual(peers["alone", "all"], 0)
        self.assertGreater(peers["slow", "others"], 20000)
        self.assertGreater(peers["slow", "others"], rows["slow", "others"]["exposed_network_us"])
        self.assertLess(peers["slow", "slow"], peers["slow", "others"] / 2)
        self.assertLess(peers["equal", "all"], peers["slow", "others"] / 2)
        table = self.bench("exposed", "-n", "2", "--iters", "1", "--piece-us", "100", "--late-us", "1000").splitlines()
        self.assertEqual(len(table), 6)
        self.assertEqual(len({len(line) for line in table[1:]}), 1, table)

    def test_snapshot(self):
        row = json.loads(self.bench("snapshot", "-n", "2", "-s", "1", "--bytes", "64K", "--tensors", "2", "--steps", "20", "--snapshots", "3",
                                    "--codec", "int8", "--pause", "2", "--json"))
        self.assertEqual((row["measure"], row["ranks"], row["bytes"], row["codec"]), ("snapshot", 2, 65536, "int8"))
        self.assertIn(row["snapshots"], (1, 2, 3))
        self.assertTrue(row["with_us"] > 2000 and row["without_us"] > 2000 and row["ratio"] > 0, row)

    def test_order(self):
        done = self.bench("order", "-n", "2", "--iters", "2", "--small-count", "7", "--large-count", "2", "--large-bytes", "64K", "--urgent-bytes", "4K", "--json")
        rows = [json.loads(line) for line in done.splitlines()]
        self.assertEqual([row["row"] for row in rows], ["small", "urgent", "all"])
        self.assertTrue(all(row["ranks"] == 2 and row["without_us"] > 0 and row["with_us"] > 0 and row["ratio"] > 0 for row in rows), rows)
        table = self.bench("order", "-n", "2", "--iters", "1", "--small-count", "2", "--large-count", "1", "--large-bytes", "8K").splitlines()
        self.assertEqual(len(table), 5)
        self.assertEqual(len({len(line) for line in table[1:]}), 1, table)

    def test_p2p(self):
        """Every measurement and wait mode; contents are checked; started alone and by `weft run`."""
        words = ["p2p", "--row-ms", "20", "-b", "1", "-e", "70000", "-f", "1000", "--json"]
        for wait in ("poll", "sleep", "auto"):
            with self.subTest(wait=wait):
                rows = [json.loads(line) for line in self.bench(*words, "--measure", "all", "--wait", wait).splitlines()]
                self.assertEqual([(row["measure"], row["bytes"]) for row in rows],
                                 [(measure, size) for measure in ("lat", "bw", "duplex", "rate") for size in (1, 1000)])
                self.assertEqual({row["wrong"] for row in rows}, {0})
                self.assertTrue(all(row["t_min_us"] <= row["t_typical_us"] <= row["t_99_us"] <= row["t_max_us"]
                                    for row in rows if row["measure"] == "lat"))
        for pattern in ("pairs", "incast", "fanout", "all"):
            with self.subTest(pattern=pattern):
                rows = [json.loads(line) for line in self.bench(*words, "-n", "3", "--pattern", pattern, "--wait", "sleep").splitlines()]
                self.assertEqual({(row["wrong"], row["ranks"]) for row in rows}, {(0, 3)})
        done = subprocess.run([harness.PROGRAMS.weft, "run", "-n", "2", "--log-dir", os.path.join(self.directory, "p2p"), "--", harness.PROGRAMS.weft,
                               "bench", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({json.loads(line)["wrong"] for line in done.stdout.splitlines()}, {0})

    @staticmethod
    def session_members(session):
        """Processes of the session that still run."""
        members = []
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                with open(path, encoding="ascii", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()  # state, parent, group, session
            except OSError:
                continue
            if fields[0] != "Z" and int(fields[3]) == session:
                members.append(path)
        return members

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "two cores that share memory")
    def test_lines(self):
        rows = [json.loads(line) for line in self.bench("cacheline", "-b", "4K", "-e", "16K", "-r", "2", "--json").splitlines()]
        self.assertEqual([(row["bytes"], row["plan"]) for row in rows], [(size, plan) for size in (4096, 16384) for plan in ("read", "taken", "past")])
        for row in rows:
            self.assertAlmostEqual(row["time_us"], row["bytes"] * 1e-3 * (1 / row["write_GBps"] + 1 / row["read_GBps"]), delta=1e-3 * row["time_us"])
            self.assertGreater(row["faster"], 0)
        self.assertRegex(self.bench("cacheline", "-e", "4K", "-r", "1"), r"(?m)^ *4096  taken +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+$")

    def test_lines_of_one_processor(self):
        done = subprocess.run([harness.PROGRAMS.weft, "bench", "cacheline"], stderr=subprocess.PIPE, text=True, timeout=SECONDS,
                              preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
        self.assertEqual(done.returncode, 1)
        self.assertIn("needs two", done.stderr)

    def test_interrupt(self):
        """Ctrl-C ends every process of a benchmark, and the printed rows are complete."""
        jobs = (["p2p", "-n", "3", "--pattern", "all", "--measure", "bw", "--row-ms", "400", "--json"], ["all_reduce", "-n", "2", "--iters", "200", "--json"],
                ["push_pull", "-n", "2", "-s", "1", "--iters", "200", "--json"])
        for words in jobs:
            with self.subTest(bench=words[0]):
                path = self.path(words[0])
                with open(path, "w", encoding="ascii") as out:
                    process = subprocess.Popen([harness.PROGRAMS.weft, "bench", *words, "-b", "8", "-e", "64M", "-f", "2"], stdout=out,
                                               stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True)
                try:
                    limit = time.monotonic() + SECONDS
                    while os.path.getsize(path) == 0 and process.poll() is None and time.monotonic() < limit:
                        time.sleep(0.02)
                    self.assertIsNone(process.poll(), "it was over too soon")
                    os.killpg(process.pid, signal.SIGINT)
                    self.assertNotEqual(process.wait(SECONDS), 0)
                    limit = time.monotonic() + SECONDS
                    while self.session_members(process.pid) and time.monotonic() < limit:
                        time.sleep(0.05)
                    self.assertEqual(self.session_members(process.pid), [])
                finally:
                    for member in self.session_members(process.pid):
                        os.kill(int(member.split("/")[2]), signal.SIGKILL)
                    process.wait()
                with open(path, encoding="ascii") as file:
                    lines = file.read().split("\n")
                self.assertGreaterEqual(len([json.loads(line) for line in lines[:-1]]), 1)

    def test_table(self):
        table = self.bench("all_reduce", "-n", "2", "-e", "64K", "-f", "16")
        for word in ("size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong", "out-of-place", "in-place", "# Out of bounds values : 0 OK"):
            self.assertIn(word, table)

    def test_examples(self):
        for shards, name, words in ((0, "01_all_reduce", "of 3"), (1, "02_push_pull", "through shards"), (0, "02_push_pull", "without shards")):
            with self.subTest(name=name, shards=shards):
                done = self.run_job(shards, 3, [os.path.join(harness.BUILD, "examples", name)], f"{name}-{shards}")
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertIn(words, done.stdout)

    def test_checkpoint(self):
        """Twice 10 steps, through two shards and then through one, are 20 steps."""
        sums = {}
        for folder, turns in (("halves", ((2, "10"), (1, "10"))), ("whole", ((1, "20"),))):
            place = os.path.join(self.directory, folder)
            os.mkdir(place)
            for turn, (shards, steps) in enumerate(turns):
                done = self.run_job(shards, 2, [os.path.join(harness.BUILD, "examples", "03_checkpoint"), place, steps], f"{folder}-{turn}")
                self.assertEqual(done.returncode, 0, done.stdout)
            sums[folder] = re.search(r"to 20: the weights sum to (-?[0-9.]+)", done.stdout).group(1)
        self.assertEqual(sums["halves"], sums["whole"])

    def test_damaged_checkpoint(self):
        """An incomplete checkpoint is refused with a sentence; if a file cannot be written, all ranks keep the checkpoint before."""
        place, program = os.path.join(self.directory, "place"), os.path.join(harness.BUILD, "examples", "03_checkpoint")

        def trains(name, sentence=None):
            done = self.run_job(1, 2, [program, place, "2"], name)
            self.assertEqual(done.returncode, 1 if sentence else 0, done.stdout)
            self.assertIn(sentence or "", done.stdout)

        def contents():
            files = {}
            for name in ("latest", "residual-2-0", "residual-2-1", "state-2-0", "weights-2-0"):
                with open(os.path.join(place, name), "rb") as file:
                    files[name] = file.read()
            return files
        trains("nowhere", f"cannot make {place}/residual-2-")
        os.mkdir(place)
        trains("first")
        first = contents()
        os.symlink("/dev/full", os.path.join(place, "weights-4-0"))
        trains("full", "weights-4-0: No space left on device")
        self.assertEqual(contents(), first)
        os.unlink(os.path.join(place, "weights-4-0"))
        for name, sentence in (("weights-2-0", "files of step 2 in"), ("state-2-0", "it is cut short"), ("residual-2-1", "residual_load of tensor"),
                               ("latest", "latest is damaged")):
            os.truncate(os.path.join(place, name), len(first[name]) // 2)
            trains("cut-" + name, sentence)
            with open(os.path.join(place, name), "wb") as file:
                file.write(first[name])
        trains("second")
        self.assertEqual(sorted(os.listdir(place)), ["latest", "residual-4-0", "residual-4-1", "state-4-0", "weights-4-0"])


if __name__ == "__main__":
    harness.main()
