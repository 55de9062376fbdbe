"""test_sentences.py - mistakes of the user give one sentence and an exit status, and no hang."""

import gzip
import os
import shutil
import socket
import subprocess

import harness

STEPS = os.path.join(harness.BUILD, "tests", "client", "freed")  # declares tensors and runs steps


class Sentences(harness.JobTest):
    def check(self, done, *parts):
        self.assertGreater(done.returncode, 0, done.stdout)
        for part in parts:
            self.assertIn(part, done.stdout)
        self.assertNotIn("Assertion", done.stdout)
        self.assert_nothing_left(self.directory)

    def call(self, *words):
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30)

    def test_wrong_options(self):
        self.check(self.call(harness.PROGRAMS.weft, "run", "--bogus"), "bogus")
        self.check(self.call(harness.PROGRAMS.weft, "run", "-n", "none", "--", "true"), "none")
        self.check(self.call(harness.PROGRAMS.weft, "nonsense"), "nonsense")
        self.check(self.call(harness.PROGRAMS.weftd, "--bogus"), "bogus")
        self.check(self.call(harness.PROGRAMS.trainer, "--lr", "fast"), "--lr fast", "number")
        self.check(self.call(harness.PROGRAMS.trainer, "--mode", "both"), "server or all_reduce")
        self.check(self.call(harness.PROGRAMS.weft, "bench", "all_reduce", "-b", "many"), "'many'", "64K")

    def test_help_and_version(self):
        for words in (["run", "--help"], ["bench", "--help"], ["bench", "all_reduce", "--help"], ["status", "--help"], ["--help"], ["--version"]):
            done = self.call(harness.PROGRAMS.weft, *words)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertTrue(done.stdout.strip())

    def test_wrong_codec(self):
        self.check(self.run_job(1, 2, [harness.PROGRAMS.trainer, "--codec", "zip:level=9"], seconds=30), "zip")
        self.check(self.run_job(1, 2, [harness.PROGRAMS.trainer, "--codec", "topk:ratio=7"], "run2", seconds=30), "ratio")

    def test_no_such_program(self):
        self.check(self.run_job(1, 2, [self.path("no-such-trainer")], seconds=30), "no-such-trainer")

    def test_files_and_directories_that_cannot_be_written(self):
        weft = harness.PROGRAMS.weft
        self.check(self.call("sh", "-c", f'ulimit -f 0; exec "{weft}" run -n 2 --log-dir "{self.path("run")}" -- true'), "secret: File too large")
        self.check(self.call("env", "TMPDIR=/nonexistent", weft, "run", "-n", "2", "--log-dir", self.path("run"), "--", "true"), "/nonexistent/", "set TMPDIR")
        self.check(self.call("sh", "-c", f'cd /proc && exec "{weft}" run -n 2 -- true'), "log directory weft-logs", "--log-dir")

    def test_no_job(self):
        self.check(self.call(harness.PROGRAMS.trainer), "weft run")
        self.check(self.call(harness.PROGRAMS.weft, "bench", "all_reduce"), "-n 2")

    def launched(self, variables, *words):
        """Runs a command as a launcher with these variables starts it; it must be refused at once, without a log directory."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30, cwd=self.directory,
                              env={**environment, **variables})

    def test_launcher_variables_that_do_not_fit(self):
        torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29555"}
        commands = ([harness.PROGRAMS.weft, "run", "--", "true"], [harness.PROGRAMS.weft, "bench", "all_reduce"], [harness.PROGRAMS.trainer])
        for change, part in (({"RANK": "2"}, "RANK=2"), ({"RANK": "zero"}, "RANK=zero"), ({"MASTER_PORT": "abc"}, "MASTER_PORT=abc"),
                             ({"MASTER_PORT": ""}, "MASTER_PORT is empty")):
            for command in commands:
                with self.subTest(change=change, command=command):
                    self.check(self.launched({**torchrun, **change}, *command), part, "unset")
        self.assertFalse(os.path.exists(self.path("weft-logs")))

    def test_processes_of_one_launcher_do_not_start_a_job_each(self):
        srun = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}
        mpirun = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "x"}
        run = [harness.PROGRAMS.weft, "run"]
        self.check(self.launched(srun, *run, "-s", "2", "--", "true"), "srun", "4 processes", "-s")
        self.check(self.launched(mpirun, *run, "-s", "1", "--", "true"), "mpirun", "4 processes", "-s")
        two_hosts = {**mpirun, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        self.check(self.launched(two_hosts, *run, "--", "true"), "rank 0 of 4", "MASTER_ADDR")
        self.check(self.launched({"PMIX_RANK": "1", "PMIX_NAMESPACE": "x"}, *run, "--", "true"), "PMIx", "number of processes", "WORLD_SIZE")
        self.check(self.launched({"WEFT_RANK": "1"}, *run, "--", "true"), "WEFT_RANK=1", "unset")
        self.check(self.launched({"WEFT_COORDINATOR": "a:1"}, *run, "--", "true"), "WEFT_COORDINATOR=a:1", "unset")
        for name, value in (("WEFT_RANKS", "2"), ("JOB_COMPLETION_INDEX", "1"), ("WEFT_HEADLESS_SERVICE", "svc"), ("LOCAL_RANK", "1")):
            self.check(self.launched({name: value}, *run, "--", "true"), f"{name}={value} is set", "unset")
        self.assertFalse(os.path.exists(self.path("weft-logs")))
        alone = self.launched({**srun, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, *run, "-s", "1", "--", "true")
        self.assertEqual(alone.returncode, 0, alone.stdout)

    def test_missing_data_set(self):
        self.check(self.run_job(1, 2, [harness.PROGRAMS.trainer, "--data", self.path("nothing")], seconds=30), "data set not found",
                   "dataset-fashion-mnist")

    def corrupt(self, change):
        directory = self.path("data")
        shutil.copytree(harness.DATA, directory)
        path = os.path.join(directory, "train-images-idx3-ubyte.gz")
        change(path)
        return self.run_job(0, 2, [harness.PROGRAMS.trainer, "--mode", "all_reduce", "--data", directory], seconds=30)

    def test_truncated_images(self):
        self.check(self.corrupt(lambda path: os.truncate(path, 1000000)), "corrupt file", "train-images", "too early")

    def test_flipped_bytes(self):
        def flip(path):
            with open(path, "r+b") as file:
                file.seek(5000000)
                file.write(b"\x55\xaa\x55\xaa")
        self.check(self.corrupt(flip), "corrupt file", "train-images", "reinstall")

    def test_labels_for_images(self):
        def swap(path):
            shutil.copy(path.replace("images-idx3", "labels-idx1"), path)
        self.check(self.corrupt(swap), "wrong file", "train-images", "magic")

    def test_size_that_lies(self):
        def lie(path):
            with gzip.open(path, "wb", compresslevel=1) as file:
                file.write(bytes([0, 0, 8, 3, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 28, 0, 0, 0, 28]))
        self.check(self.corrupt(lie), "wrong file", "4294967295 items")

    def test_different_shapes(self):
        words = ["sh", "-c", f'exec "{harness.PROGRAMS.trainer}" --hidden $((64 + WEFT_RANK))']
        self.check(self.run_job(1, 2, words, seconds=30), "fc1.weight", "rank")

    def test_different_steps(self):
        words = ["sh", "-c", f'exec "{harness.PROGRAMS.trainer}" --hidden 64 --steps 30 --lr 0.0$((1 + WEFT_RANK))']
        self.check(self.run_job(1, 2, words, seconds=30), "rank")

    def test_options_that_differ_between_ranks(self):
        """Options that are equal on all ranks: the sentence names the option."""
        for option, value, part in (("client.push_order", "called", "client.push_order"), ("client.hash_every", "1", "client.hash_every"),
                                    ("client.learn_order", "no", "client.learn_order"), ("client.skip_nonfinite", "yes", "skip_nonfinite true")):
            variable = "WEFT_" + option.upper().replace(".", "_")
            script = f'[ "$WEFT_RANK" = 1 ] && export {variable}={value}; exec "{STEPS}" 99 0 2 reduce'
            self.check(self.run_job(0, 2, ["sh", "-c", script], option), part)

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            done = self.call(harness.PROGRAMS.weftd, "--workers", "1", "--shards", "1", "--port", port)
        self.check(done, port, "in use")

    def test_open_listener_without_secret(self):
        self.check(self.call(harness.PROGRAMS.weftd, "--workers", "1", "--shards", "1", "--listen", "0.0.0.0"), "secret")


if __name__ == "__main__":
    harness.main()
