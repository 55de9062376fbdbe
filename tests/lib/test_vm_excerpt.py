#!/usr/bin/python3
"""test_vm_excerpt.py - excerpts of the output of a check that failed in the virtual machine (tests/vm/checks.py)."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "vm"), os.path.join(HERE, "..", "..", "tools", "dev")]
import checks  # noqa: E402


class ExcerptTest(unittest.TestCase):
    def test_short_ones_are_shown_whole(self):
        lines = [f"line {number}" for number in range(40)]
        self.assertEqual(checks.excerpt(lines), lines)

    def test_without_a_fault_the_end_is_shown(self):
        lines = [f"line {number}" for number in range(1000)]
        self.assertEqual(checks.excerpt(lines), ["...", *lines[-40:]])

    def test_the_first_fault_is_shown_with_what_is_about_it(self):
        for fault in "[  ERROR   ] --- 1 != 2", "[  FAILED  ] case", "x.c:7: f: Assertion `a' failed.", "==1==ERROR: AddressSanitizer: heap", "x.c:3: runtime error: shift":
            lines = [f"line {number}" for number in range(1000)]
            lines[300] = fault
            lines[400] = "[  FAILED  ] another"
            self.assertEqual(checks.excerpt(lines), ["...", *lines[280:320], "...", *lines[-40:]])

    def test_a_fault_near_an_end_shows_nothing_twice(self):
        lines = ["[  ERROR   ] --- first", *(f"line {number}" for number in range(45))]
        self.assertEqual(checks.excerpt(lines), lines)


if __name__ == "__main__":
    unittest.main()
