"""test_faults.py - the harness must find each planted fault of faulty_plugin.c, at the point named here.

    test_faults.py HARNESS FAULTY-PLUGIN PLAIN-PLUGIN WEFT-PLUGIN

A fault of kind "hang" ends by the harness's limit. Any other must end by a check or a signal, well before
its limit. Without a fault the wrapper must pass the same points.
"""

import concurrent.futures
import os
import subprocess
import sys

FAULTS = [  # fault, point that must fail, kind
    ("entry-missing", "table", "fail"),
    ("finalize-null", "life", "fail"),
    ("finalize-all", "life", "fail"),
    ("no-device", "properties", "fail"),
    ("name-changes", "properties", "fail"),
    ("handle-long", "handle", "fail"),
    ("handle-address", "handle", "fail"),
    ("handle-trusted", "hostile", "fail"),
    ("listen-once", "handle", "hang"),
    ("connect-waits", "either-order", "hang"),
    ("accept-waits", "either-order", "hang"),
    ("connect-forever", "listener-closed", "hang"),
    ("one-thread", "many", "fail"),
    ("overlap-refused", "registrations", "fail"),
    ("dereg-newest", "registrations", "fail"),
    ("empty-lost", "sizes", "hang"),
    ("tail-lost", "sizes", "fail"),
    ("size-of-buffer", "sizes", "fail"),
    ("writes-behind", "sizes", "fail"),
    ("done-early", "sizes", "fail"),
    ("long-silent", "too-long", "fail"),
    ("swapped", "order", "fail"),
    ("sent-twice", "order", "fail"),
    ("tag-order", "groups", "weft"),
    ("group-sizes", "groups", "weft"),
    ("full-error", "full", "fail"),
    ("full-taken", "full-sends", "hang"),
    ("oldest-only", "newest-first", "fail"),
    ("optional-left", "optional", "fail"),
    ("sizes-null", "reuse", "fail"),
    ("request-leak", "reuse", "hang"),
    ("flush-left", "flush", "fail"),
    ("flush-never", "flush", "fail"),
    ("profiler-changed", "profiler", "fail"),
    ("flag-first", "ll", "fail"),
    ("late-write", "abort", "fail"),
    ("close-waits", "abort", "hang"),
    ("death-silent", "death", "hang"),
    ("death-code", "death", "fail"),
    ("death-spreads", "death", "fail"),
    ("second-life", "reload", "fail"),
    ("spins", "idle", "fail"),
    ("coll-last-bit", "coll-values", "weft"),
    ("coll-nan-sign", "coll-values", "weft"),
    ("coll-zero-sign", "coll-values", "weft"),
    ("coll-flushed", "coll-values", "weft"),
    ("coll-overflow", "coll-values", "weft"),
    ("coll-one-rank", "coll-values", "weft"),
]


def run(case):
    fault, points, kind = case
    harness, faulty, plain, weft = sys.argv[1:5]
    environment = dict(os.environ, NCCL_TEST_FAULT=fault, NCCL_TEST_INNER=weft if kind == "weft" else plain,
                       WEFT_TRANSPORT_BACKEND="tcp")
    limit = "2" if kind == "hang" else "60"
    done = subprocess.run([harness, "--plugin", faulty, "--points", points, "--limit", limit], env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    is_late = "no end within" in done.stdout
    if "cannot be opened" in done.stdout:
        return False, done.stdout
    if fault == "none":
        return done.returncode == 0, done.stdout
    return done.returncode == 1 and is_late == (kind == "hang") and f"FAIL {points}" in done.stdout, done.stdout


def main():
    only_weft = {point for _, point, kind in FAULTS if kind == "weft"}
    points = ",".join(sorted({point for _, point, _ in FAULTS} - only_weft))
    cases = FAULTS + [("none", points, "fail"), ("none", ",".join(sorted(only_weft)), "weft")]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for (fault, point, _), (is_found, output) in zip(cases, pool.map(run, cases)):
            if not is_found:
                failed += 1
                print(f"fault {fault}: not found at point {point}:\n{output}")
    print(f"{len(FAULTS)} faults, {failed} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
