"""test_overlap_plot.py - the lines of sim_overlap are read as they are printed, and a missing way is an error."""

import os
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools", "dev"))
import overlap_plot  # noqa: E402

LINE = "{} Mbit/s: compute 41.00 ms, traffic 26.70 ms, {:8} step {:.2f} ms, added {:.2f} ms, above the longer one {:.1f} %\n"


class OverlapPlot(unittest.TestCase):
    def lines(self, *ways):
        return "".join(LINE.format(1000, way, 41.0 + added, added, added * 2.4) for way, added in ways)

    def test_lines(self):
        rows = overlap_plot.parse(self.lines(("after", 27.22), ("backward", 8.98), ("forward", -0.5)))
        self.assertEqual(rows, [(1000, "after", 27.22, 65.3), (1000, "backward", 8.98, 21.6), (1000, "forward", -0.5, -1.2)])

    def test_a_missing_way(self):
        with self.assertRaisesRegex(ValueError, "printed the ways .'after', 'forward'."):
            overlap_plot.parse(self.lines(("after", 1.0), ("forward", 1.0)))

    def test_files(self):
        rows = overlap_plot.parse(self.lines(("after", 3.0), ("backward", 2.0), ("forward", 1.0)))
        with tempfile.TemporaryDirectory() as folder:
            paths = overlap_plot.write(folder, rows)
            with open(paths["backward"], encoding="utf-8") as file:
                self.assertEqual(file.read().split(), ["mbits,added,above", "1000,2.0,4.8"])

    def test_the_simulator_prints_such_lines(self):
        with open(os.path.join(ROOT, "tests", "sim", "sim_overlap.c"), encoding="utf-8") as file:
            source = file.read()
        for words in ("Mbit/s: compute %.2f ms, traffic %.2f ms, %-8s step %.2f ms, added %.2f ms, above the", '"longer one %.1f %%'):
            self.assertIn(words, source)
        for way in overlap_plot.WAYS:
            self.assertIn(f'"{way}"', source)

    def test_the_page_shows_both_charts(self):
        with open(os.path.join(ROOT, "docs", "overlap.md"), encoding="utf-8") as file:
            page = file.read()
        for column in overlap_plot.CHARTS:
            self.assertIn(f"(plots/overlap-{column}.svg)", page)
            self.assertTrue(os.path.exists(os.path.join(ROOT, "docs", "plots", f"overlap-{column}.svg")))


if __name__ == "__main__":
    unittest.main()
