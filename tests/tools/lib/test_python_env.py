#!/usr/bin/python3
"""test_python_env.py - tools/lib/python-env without a network; torch_stubs.py on libraries made here."""

import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
TOOL = os.path.join(ROOT, "tools", "lib", "python-env")
STUBS = os.path.join(ROOT, "tools", "lib", "torch_stubs.py")
# Nothing listens on port 9 of the loopback address.
OFFLINE = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "0"}


def call(*command, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env={**kept, **environment})


class EnvironmentTest(unittest.TestCase):
    def test_the_default_lies_in_the_cache(self):
        self.assertEqual(call(TOOL, "--print", XDG_CACHE_HOME="/cache").stdout, "/cache/weft/python-env\n")

    def test_wrong_usage(self):
        done = call(TOOL, "--tortch")
        self.assertEqual(done.returncode, 2)
        self.assertIn("unknown option '--tortch'", done.stderr)

    @unittest.skipUnless(importlib.util.find_spec("ensurepip"), "python3-venv is not installed")
    def test_without_an_index_it_ends_with_77_and_one_sentence(self):
        with tempfile.TemporaryDirectory() as directory:
            done = call(TOOL, os.path.join(directory, "env"), **OFFLINE)
            self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
            self.assertIn("the package index cannot be reached", done.stderr)


class StubsTest(unittest.TestCase):
    """A library that needs two CUDA libraries: one with symbol versions, one without."""

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.directory = os.path.join(self.scratch.name, "lib")
        os.mkdir(self.directory)

    def write(self, name, text):
        path = os.path.join(self.scratch.name, name)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return path

    def library(self, name, text, *flags):
        source = self.write(name + ".c", text)
        path = os.path.join(self.directory, name)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-w", "-o", path, source, f"-Wl,-soname,{name}", *flags], check=True
        )
        return path

    def test_a_library_loads_without_the_cuda_libraries(self):
        script = self.write("map", "libcudatest.so.7 { global: cudaTestVersioned; };\n")
        self.library(
            "libcudatest.so.7", "int cudaTestVersioned(void) { return 1; }", f"-Wl,--version-script={script}"
        )
        self.library("libncclplain.so.2", "int ncclPlain(void) { return 2; }")
        user = self.library(
            "libuser.so",
            "int cudaTestVersioned(void), ncclPlain(void);\n"
            "int use(void) { return cudaTestVersioned() + ncclPlain(); }",
            f"-L{self.directory}",
            "-l:libcudatest.so.7",
            "-l:libncclplain.so.2",
            "-Wl,-rpath,$ORIGIN",
        )
        for name in ("libcudatest.so.7", "libncclplain.so.2"):
            os.remove(os.path.join(self.directory, name))
        self.assertRaises(OSError, ctypes.CDLL, user)
        done = call(sys.executable, STUBS, self.directory)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 stub libraries", done.stdout)
        self.assertEqual(ctypes.CDLL(user).use(), 200)


if __name__ == "__main__":
    unittest.main()
