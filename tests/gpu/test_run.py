"""test_run.py - the outcome that run.sh derives from the output of two ranks: over a fake nccl_pair and a fake nvidia-smi.

    test_run.py RUN.SH BUILD-FOLDER LIBFAKE_CUDART LIBFAKE_NCCL LIBFAKE_KERNELS
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PAIR = r"""#!/bin/sh
rank=$2
die=
again=
for word in "$@"; do [ "$word" = --die ] && die=yes; [ "$word" = --again ] && again=yes; done
plugin=no
[ "$NCCL_NET" = weft ] && plugin=yes
via=$([ $plugin = yes ] && [ "$FAKE" != fallback ] && echo weft/0 || echo Socket/0)
echo "host NCCL INFO Channel 00 : 0[0] -> 1[0] [send] via NET/$via" > "$NCCL_DEBUG_FILE"
[ "$NCCL_COLLNET_ENABLE$FAKE" = 1 ] && echo "host NCCL INFO CollNet 00/0 : 0 [send] via COLLNET/weft/0" >> "$NCCL_DEBUG_FILE"
[ "$FAKE" = skip ] && echo "skip: no CUDA device" && exit 77
echo "version 22809"
[ "$FAKE" = bits ] && [ $plugin = yes ] && echo "all_reduce 8 1111" || echo "all_reduce 8 2222"
[ "$FAKE" = broken ] && exit 1
[ -n "$die" ] && kill -9 $$
[ "$FAKE" = silent ] && exit 0
case "$NCCL_DEBUG_FILE" in *death*) echo "ncclCommGetAsyncError: remote error"; exit 3 ;; esac
echo done
"""
SMI = """#!/bin/sh
echo "GPU 0: fake"
"""


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name, text in (("nccl_pair", PAIR), ("nvidia-smi", SMI), ("libnccl-net-weft.so", "")):
            path = os.path.join(self.folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, 0o755)

    def run_part(self, part, fake="", with_gpu=True):
        path = (self.folder + ":" if with_gpu else "") + os.environ["PATH"]
        done = subprocess.run([RUN, part, self.folder], env=dict(os.environ, FAKE=fake, PATH=path), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def test_good(self):
        for part in ("nccl-sockets", "nccl-net", "nccl-net-ll", "nccl-collnet", "nccl-death", "nccl-again"):
            code, output = self.run_part(part)
            self.assertEqual(code, 0, part + "\n" + output)
            self.assertIn("ok ", output)
            self.assertIn("version 22809", output)

    def test_bad(self):
        for part, fake, text in (("nccl-sockets", "broken", "ranks ended"), ("nccl-net", "bits", "other bits"),
                                 ("nccl-net", "fallback", "no connection via NET/weft"),
                                 ("nccl-net", "broken", "ranks ended"), ("nccl-death", "silent", "not with a remote"),
                                 ("nccl-again", "fallback", "no connection"),
                                 ("nccl-collnet", "bits", "NCCL has fallen back"),
                                 ("nccl-collnet", "broken", "ranks ended")):
            code, output = self.run_part(part, fake)
            self.assertEqual(code, 1, part + fake + "\n" + output)
            self.assertIn(text, output)

    def test_kernels(self):
        path = os.path.join(self.folder, "kernel_check")
        for script, code, text in (("echo '  gpu: tables'", 0, "ok   kernels"), ("exit 3", 1, "ended with 3")):
            with open(path, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\n" + script + "\n")
            os.chmod(path, 0o755)
            self.assertEqual(self.run_part("kernels")[0], code)
            self.assertIn(text, self.run_part("kernels")[1])
        if not shutil.which("nvidia-smi"):
            self.assertEqual(self.run_part("kernels", with_gpu=False)[0], 77)

    def add_program(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text + "\n")
        os.chmod(path, 0o755)

    def test_sanitizer(self):
        """A part in which no tool finishes has shown nothing, and fails."""
        self.add_program("kernel_check", "exit 0")
        for text, status, words in (("echo '========= ERROR SUMMARY: 0 errors'", 0, "ok   initcheck"), ("exit 124", 1, "no tool has finished"),
                                    ("exit 9", 1, "memcheck: status 9")):
            self.add_program("compute-sanitizer", text)
            code, output = self.run_part("sanitizer")
            self.assertEqual(code, status, output)
            self.assertIn(words, output)

    def test_cuda(self):
        self.add_program("build.ninja", "")
        for status in (0, 3):
            self.add_program("meson", f"exit {status}")
            code, output = self.run_part("cuda")
            self.assertEqual(code, 1 if status else 0, output)

    def test_kernel_speed(self):
        path = os.path.join(self.folder, "kernel_check")
        row = '{"on":"gpu","kernel":"%s","elements":9,"time_ms":0.125,"GBps":1,"copy_GBps":2,"ratio":0.83,"ratio_low":0.1,"ratio_high":1}'
        lines = [row % name for name in ("add residual, quantise i8", "adam")]
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\ncat <<'TEXT'\n" + "\n".join(lines) + "\nTEXT\n")
        os.chmod(path, 0o755)
        code, output = self.run_part("kernel-speed")
        self.assertEqual(code, 0, output)
        self.assertRegex(output, r"quantise i8 +0.125 ms, 0.83 of a copy \(goal: at least 0.8\)")
        self.assertRegex(output, r"adam +0.125 ms, 0.83 of a copy\n")

    def test_without_torch(self):
        for part in ("nccl-torch", "torch-cuda", "torch-steps", "overlap"):
            done = subprocess.run([RUN, part, self.folder], text=True, stdout=subprocess.PIPE, env=dict(
                os.environ, PATH=self.folder + ":" + os.environ["PATH"], WEFT_PYTHON="/none/python"))
            self.assertEqual(done.returncode, 77)
            self.assertIn("/none/python has no PyTorch", done.stdout)

    def test_pair_over_fakes(self):
        """nccl_pair itself: equal lines in two runs, a line for each type, reduction and size, two lives."""
        pair = os.path.join(BUILD, "tests", "gpu", "nccl_pair")
        env = dict(os.environ, WEFT_CUDA_RUNTIME=CUDART, WEFT_NCCL=NCCL)
        runs = []
        for number, options in enumerate((["--types"], ["--types"], ["--again", "2"])):
            ranks = [subprocess.Popen([pair, "--rank", str(rank), "--ranks", "2", "--id", f"{self.folder}/id{number}", "--max", "65536",
                                       *options], env=env, text=True, stdout=subprocess.PIPE) for rank in range(2)]
            runs.append([rank.communicate()[0] for rank in ranks])
            self.assertEqual([rank.returncode for rank in ranks], [0, 0], runs[-1])
        self.assertEqual(runs[0], runs[1])
        self.assertEqual(runs[0][0], runs[0][1])
        self.assertEqual(len(set(runs[0][0].splitlines())), 10 * 4 * 2 + 2)
        self.assertEqual(len(runs[2][0].splitlines()), 2 * 5 * 4 + 2)

    def test_bundle(self):
        """The programs run from an unpacked bundle, at another place than the build folder."""
        path = os.path.join(self.folder, "bundle.tar.gz")
        subprocess.run([os.path.join(os.path.dirname(RUN), "bundle.sh"), BUILD, path], check=True, stdout=subprocess.DEVNULL)
        unpacked = os.path.join(self.folder, "unpacked")
        os.mkdir(unpacked)
        subprocess.run(["tar", "xzf", path, "-C", unpacked], check=True)
        env = dict(os.environ, PATH=self.folder + ":" + os.environ["PATH"], WEFT_CUDA_RUNTIME=CUDART, WEFT_CUDA_KERNELS=KERNELS,
                   WEFT_GPU_ROWS="64", WEFT_GPU_ROUNDS="1")
        done = subprocess.run([RUN, "codecs", unpacked], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"int8 +: +[0-9.]+ ms, [0-9.]+ of dense \(goal: at most 0.4\)")

    def test_device_rank(self):
        env = dict(os.environ, PATH=self.folder + ":" + os.environ["PATH"], WEFT_CUDA_RUNTIME=CUDART, WEFT_NCCL=NCCL,
                   WEFT_CUDA_KERNELS=KERNELS)
        for part, text in (("stream-order", "the calls held the host"), ("host-first", "NCCL 2.28.9 inside each of 2 hosts")):
            done = subprocess.run([RUN, part, BUILD], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertIn("ok   " + part, done.stdout)
            self.assertIn(text, done.stdout)
            self.assertIn("bits as on the host", done.stdout)
            done = subprocess.run([RUN, part, self.folder], env=env, text=True, stdout=subprocess.PIPE)
            self.assertEqual(done.returncode, 77)
            self.assertIn("has no device_rank", done.stdout)

    def test_device_rank_without_nccl(self):
        env = dict(os.environ, PATH=self.folder + ":" + os.environ["PATH"], WEFT_CUDA_RUNTIME=CUDART, WEFT_NCCL="/none.so",
                   WEFT_CUDA_KERNELS=KERNELS)
        # the leak sanitizer itself fails at the exit of such a rank
        env["ASAN_OPTIONS"] = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "detect_leaks=0")))
        done = subprocess.run([RUN, "host-first", BUILD], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("NCCL cannot be loaded", done.stdout)

    def test_skipped(self):
        self.assertEqual(self.run_part("nccl-net", "skip")[0], 77)
        os.remove(os.path.join(self.folder, "nccl_pair"))
        code, output = self.run_part("nccl-net")
        self.assertEqual(code, 77)
        self.assertIn("has no nccl_pair", output)
        self.assertEqual(self.run_part("parts")[0], 0)
        self.assertEqual(self.run_part("nonsense")[0], 2)


if __name__ == "__main__":
    RUN, BUILD, CUDART, NCCL, KERNELS = sys.argv[1:6]
    del sys.argv[1:6]
    unittest.main()
