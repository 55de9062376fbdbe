#!/usr/bin/env python3
"""all_reduce of weft, of Open MPI, and of weft with plans by messages, in turn, on this host.

  tools/bench/peers/all_reduce.py --build build -n 2 --rounds 5

Each round runs every contender once. The table has the medians in microseconds (in place) and the best peer over weft.
Open MPI must be installed when the build is set up (apt-get install openmpi-bin libopenmpi-dev); without it only the
plans are compared.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

SIZES = [8, 4096, 65536, 1 << 20, 4 << 20, 25 << 20, 64 << 20]


def lines(command, env, limit):
    done = subprocess.run(command, env=dict(os.environ, **env), capture_output=True, text=True, timeout=limit, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not rows:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return rows


def weft(arguments, size, plan):
    bench = os.path.join(arguments.build, "tools", "weft")
    iters = iterations(size)
    rows = lines([bench, "bench", "all_reduce", "-n", str(arguments.n), "-b", str(size), "-e", str(size), "--iters", str(iters),
                  "--plan", plan, "--json"], {"WEFT_TRANSPORT_BACKEND": "shm"}, 300)
    return rows[-1]["in_place"]["time_us"]


def mpi(arguments, size, settings):
    program = os.path.join(arguments.build, "tools", "mpi_operations")
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    rows = lines(["mpirun", "--oversubscribe", "-n", str(arguments.n), *settings, program, "all_reduce", f"{size}:{iterations(size)}"], env, 300)
    return rows[-1]["in_place"]["time_us"]


def has_ucx():
    return " pml: ucx" in subprocess.run(["ompi_info"], capture_output=True, text=True, check=False).stdout


def iterations(size):
    """Iterations for about 20 ms, in which the scheduler spreads the ranks over the processors."""
    return 20000 if size <= 65536 else 2000 if size <= 1 << 20 else 40


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    contenders = {
        "weft": lambda size: weft(arguments, size, "auto"),
        "direct": lambda size: weft(arguments, size, "direct"),
        "ring": lambda size: weft(arguments, size, "ring"),
    }
    subprocess.run(["ninja", "-C", arguments.build, "tools/mpi_operations"], capture_output=True, check=False)
    if os.path.exists(os.path.join(arguments.build, "tools", "mpi_operations")):
        ob1 = ["--mca", "pml", "ob1", "--mca", "btl", "self,vader"]
        ring = ob1 + ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "5",
                      "--mca", "coll_tuned_allreduce_algorithm_segmentsize", "1048576"]
        contenders["ompi cma"] = lambda size: mpi(arguments, size, ob1)
        contenders["ompi ring 1m"] = lambda size: mpi(arguments, size, ring)
        if has_ucx():
            ucx = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"] # without it Open MPI looks for InfiniBand
            contenders["ompi ucx"] = lambda size: mpi(arguments, size, ucx)
        else:
            print("this Open MPI was built without UCX: that contender is left out")
    print(f"{'size':>10}" + "".join(f"{name:>14}" for name in contenders) + f"{'best/weft':>12}")
    for size in SIZES:
        times = {name: [] for name in contenders}
        for _ in range(arguments.rounds):
            for name, measure in contenders.items():
                times[name].append(measure(size))
        medians = {name: statistics.median(values) for name, values in times.items()}
        peers = [value for name, value in medians.items() if name.startswith("ompi")]
        ratio = f"{min(peers) / medians['weft']:.2f}" if peers else "-"
        print(f"{size:>10}" + "".join(f"{medians[name]:>14.2f}" for name in contenders) + f"{ratio:>12}", flush=True)


if __name__ == "__main__":
    main()
