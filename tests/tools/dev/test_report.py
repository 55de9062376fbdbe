"""test_report.py - the charts of tools/quickstart and tools/dev/codec-race, drawn from rows made here."""

import importlib.util
import os
import sys
import tempfile
import types
import unittest

sys.dont_write_bytecode = True
BUILD = os.environ["WEFT_BUILD"]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
DEV = os.path.join(ROOT, "tools", "dev")
sys.path.insert(0, DEV)
PROGRAMS = types.SimpleNamespace(weft=os.path.join(BUILD, "tools", "weft"))
ROWS = "step,seconds,sent_bytes,accuracy\n0,0,0,0.1\n10,0.5,1048576,0.6\n20,1,16777216,0.8\n30,20,268435456,0.9\n"


def load(name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(DEV, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Charts(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name

    def rows(self, name):
        path = os.path.join(self.directory, name)
        with open(path + ".csv", "w", encoding="ascii") as file:
            file.write(ROWS)
        return path

    def read(self, path):
        with open(path, encoding="utf-8") as file:
            return file.read()

    def test_quickstart(self):
        """Bytes at powers of two, seconds at powers of ten; both logarithmic."""
        options = types.SimpleNamespace(out=self.directory, quick=False, seed="1")
        files = load("report").draw_all(options, PROGRAMS, [("loopback", "loopback")], [("server", "server", "dense", "dense, shards")],
                                        {("loopback", "server"): self.rows("run")})
        self.assertEqual([os.path.basename(path) for path in files], ["accuracy-over-bytes-loopback.svg", "accuracy-over-time-loopback.svg"])
        over_bytes, over_time = (self.read(path) for path in files)
        for label in ("1M", "16M", "256M"):
            self.assertIn(f">{label}</text>", over_bytes)
        for label in ("1", "10"):
            self.assertIn(f">{label}</text>", over_time)
        self.assertIn("dense, shards", over_time)

    def test_codec_race(self):
        race = load("codec_race")
        options = types.SimpleNamespace(out=self.directory, links=[next(iter(race.LINKS))], mode="server", workers=2)
        race.path_of = lambda *_: self.rows("race")
        race.mode_of = lambda _: "all_reduce"
        race.draw(options, PROGRAMS, ["dense", "auto"])
        self.assertIn("all-reduce mode, 2 workers", self.read(os.path.join(self.directory, f"codec-race-{options.links[0]}.svg")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
