#!/usr/bin/python3
"""suite.py - the tests in the virtual machine: one guest per setup, the checks of checks.py in each.

    tests/vm/suite.py [--build BUILD] [--setup one|pair] [--seconds N] [--json FILE] [CHECK...]

Prints one line per check and a summary. Exit status: 0 all passed, 1 not all, 77 no guest can run here (the reason is
printed). `tools/test --full` and `--ci` run it as the suite virtual-machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guest  # noqa: E402


def show(text):
    sys.stdout.write(text)
    sys.stdout.flush()


BOOT_SECONDS = 30  # boot and shutdown of a guest in addition to its checks; generous


def lost(setup, words, output):
    return {"name": f"{setup}: the guest", "outcome": "FAILED", "seconds": 0, "words": words, "output": output}


def run_setup(build, setup, seconds, names):
    """Results of all checks of one guest. If the guest ended early, the result is a failure of the guest."""
    output = []

    def write(text):
        output.append(text)
        show(text)

    with tempfile.TemporaryDirectory(prefix="weft-vm-out-") as out:
        checks = os.path.join(guest.HERE, "checks.py")
        trouble = None
        try:
            command = ["/usr/bin/python3", "-B", checks, build, setup, out, str(max(1.0, seconds - BOOT_SECONDS))] + names
            guest.Guest(setup, [out]).run(command, seconds + BOOT_SECONDS, write)
        except guest.GuestFailed as error:
            trouble = ("it ended without a status", str(error))
        except subprocess.TimeoutExpired:
            trouble = (f"it was not done after {seconds:.0f} s", "".join(output)[-4000:])
        try:
            with open(os.path.join(out, "results.json"), encoding="utf-8") as file:
                results = json.load(file)
        except (OSError, ValueError):
            results = []
            trouble = trouble or ("no check ran", "".join(output)[-4000:])
    return results + ([lost(setup, *trouble)] if trouble else [])


def main():
    parser = argparse.ArgumentParser(prog="tests/vm/suite.py", description="Runs the RDMA verbs tests in a virtual machine.")
    parser.add_argument("--build", default="build", help="build directory (default build)")
    parser.add_argument("--setup", choices=guest.SETUPS, help="only this one (default: all, one after the other)")
    parser.add_argument("--seconds", type=float, default=1200, help="for all guests together (default 1200)")
    parser.add_argument("--json", help="write the results there as well")
    parser.add_argument("checks", nargs="*", help="names of checks in checks.py (default: all)")
    options = parser.parse_args()
    reason = guest.unavailable()
    if reason:
        print(f"skipped: {reason}")
        return 77
    results, deadline = [], time.monotonic() + options.seconds
    started = time.monotonic()
    try:
        for setup in [options.setup] if options.setup else guest.SETUPS:
            results += run_setup(os.path.realpath(options.build), setup, max(1.0, deadline - time.monotonic()), options.checks)
    except guest.Unavailable as error:
        print(f"skipped: {error}")
        return 77
    count = {outcome: sum(result["outcome"] == outcome for result in results) for outcome in ("ok", "FAILED", "skipped", "not run")}
    for result in results:
        if result["outcome"] == "FAILED":
            print(f"\n--- {result['name']}: {result['words']}\n{result['output']}")
    print(f"virtual machine: {count['ok']} passed, {count['FAILED']} failed, {count['skipped']} skipped, {count['not run']} not run in {time.monotonic() - started:.0f} s")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file)
    return 1 if count["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
