"""test_4096_ranks.py - `weft sim` with 4,096 ranks and 64 MiB: by ring, by double tree and by the plan that is chosen, within 8 GiB.

No time is asserted; the printed figures are the time of each. The chosen plan is the fastest of the three."""

import json
import os
import subprocess
import unittest

BUILD = os.environ["WEFT_BUILD"]
GIB = 1 << 30


def weft_sim(plan):
    done = subprocess.run([os.path.join(BUILD, "tools", "weft"), "sim", "-n", "4096", "-b", "64M", "-p", plan, "--json"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=600, check=True)
    found = json.loads(done.stdout)
    print(f"{plan}: {found['plan']}, {found['virtual_ns'] / 1e6:.3f} ms, formula {found['formula_s'] * 1e3:.3f} ms, {found['events']} events in "
          f"{found['run_s']:.1f} s, set up in {found['set_up_s']:.1f} s, {found['memory_bytes'] / GIB:.2f} GiB")
    return found


class Thousands(unittest.TestCase):
    def test_ring_double_tree_and_the_chosen_plan(self):
        found = {plan: weft_sim(plan) for plan in ("ring", "double_tree", "auto")}
        for plan, one in found.items():
            self.assertEqual(one["ranks"], 4096)
            self.assertLess(one["memory_bytes"], 8 * GIB, plan)
            self.assertLess(abs(one["virtual_ns"] / 1e9 / one["formula_s"] - 1), 0.25, plan)
            self.assertLessEqual(found["auto"]["virtual_ns"], one["virtual_ns"], plan)


if __name__ == "__main__":
    unittest.main(verbosity=2)
