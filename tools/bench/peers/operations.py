#!/usr/bin/env python3
"""Operations of weft, Open MPI, MPICH and Gloo in turn, on this host.

  tools/bench/peers/operations.py --build build                                       # all operations, 2 and 4 ranks
  tools/bench/peers/operations.py --ops all_gather,broadcast -n 2 --sizes 1M,25M --rounds 5 --markdown
  tools/bench/peers/operations.py --tcp --ops all_reduce --plot tcp.svg               # over tcp, in a private network namespace; root
  tools/bench/peers/operations.py -n 4 --ops reduce --rounds 1 --samples FILE         # a part now, further parts later; then
  tools/bench/peers/operations.py --rounds 0 --samples FILE --markdown --plot all.svg # the table and the plots of all parts

Each round runs, size by size, every contender once, directly after each other and each in processes of its own: the speed
of a machine changes within seconds, and a process that has run other sizes before is warm. The table has the medians in
microseconds, in place if the operation has that, and the best peer over weft (above 1: weft is faster), the median of the
ratios of the rounds. weft runs with memory of weft_alloc, and with memory of malloc.

If a peer is not installed, its column is left out with a message. Open MPI and MPICH must be installed when the build is set
up (apt-get install openmpi-bin libopenmpi-dev mpich libmpich-dev). Gloo is part of PyTorch (python3-torch). UCC is not in
Debian.
"""
import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile

TOOLS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOOLS, "dev"))
import netns  # noqa: E402

OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all", "barrier", "sendrecv"]
CONTENDERS = ["weft", "weft, malloc", "Open MPI", "Open MPI, UCX", "Open MPI, ring", "MPICH", "Gloo"]
COLORS = 8  # of weft bench plot
MPI_NAMES = {"reduce_scatter": ["reduce_scatter", "reduce_scatter_block"]}  # the faster of the two counts
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
PYTHON = "/usr/bin/python3"  # that of Debian, for which python3-torch is installed
ROOT_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def parse_size(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def name_size(size):
    for unit in "GMK":
        if size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]} {unit}iB"
    return f"{size} B"


def iterations(size):
    """Iterations of a size; at least as long as the scheduler needs to spread ranks over the processors."""
    return 20000 if size <= 4096 else 5000 if size <= 65536 else 500 if size <= 1 << 20 else 20


def rows_of(words, env, inside):
    """The JSON rows that a command prints; None: it failed, and the first failure is printed."""
    done = subprocess.run(inside + words, env=dict(os.environ, **env), capture_output=True, text=True, timeout=600, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0:
        return rows
    print(f"# {' '.join(words[:8])} ... failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    return []


def time_of(row):
    return row.get("in_place", row)["time_us"]


class Contest:
    def __init__(self, arguments, ranks, inside):
        self.arguments, self.ranks, self.inside = arguments, ranks, inside
        self.tools = os.path.join(os.path.abspath(arguments.build), "tools")

    def weft(self, operation, sizes, memory):
        times = {}
        transport = self.arguments.tcp or "shm"
        for size in sizes:
            words = [os.path.join(self.tools, "weft"), "bench", operation, "-n", str(self.ranks), "-b", str(size), "-e", str(size), "--iters",
                     str(iterations(size)), "--memory", memory, "--transport", transport, "--json"]
            for row in rows_of(words, {}, self.inside):
                times[size] = time_of(row)
        return times

    def mpi(self, launcher, program, operation, sizes):
        times = {}
        for name in MPI_NAMES.get(operation, [operation]):
            words = [*launcher, "-n", str(self.ranks), os.path.join(self.tools, program), name] + [f"{size}:{iterations(size)}" for size in sizes]
            for row in rows_of(words, {**ROOT_MPI, **({"UCX_TLS": "tcp,self"} if self.arguments.tcp else {})}, self.inside):
                times[row["bytes"]] = min(time_of(row), times.get(row["bytes"], float("inf")))
        return times

    def gloo(self, operation, sizes):
        words = [PYTHON, os.path.join(TOOLS, "bench", "peers", "gloo_operations.py"), "-n", str(self.ranks), operation]
        return {row["bytes"]: time_of(row) for row in rows_of(words + [f"{size}:{iterations(size)}" for size in sizes], {}, self.inside)}

    def contenders(self, operation):
        """Name: function of the sizes."""
        tcp = self.arguments.tcp
        found = {"weft": lambda sizes: self.weft(operation, sizes, "mapped")}
        if not tcp and operation != "barrier":
            found["weft, malloc"] = lambda sizes: self.weft(operation, sizes, "plain")
        if os.path.exists(os.path.join(self.tools, "mpi_operations")):
            start = ["mpirun.openmpi", "--oversubscribe"]
            own = start + ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp" if tcp else "self,vader"] + (["--mca", "btl_tcp_if_include", "lo"] if tcp else [])
            ucx = start + ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]  # without it Open MPI looks for InfiniBand
            found["Open MPI"] = lambda sizes: self.mpi(own, "mpi_operations", operation, sizes)
            found["Open MPI, UCX"] = lambda sizes: self.mpi(ucx, "mpi_operations", operation, sizes)
            if operation == "all_reduce" and not tcp:
                ring = own + ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "5", "--mca",
                              "coll_tuned_allreduce_algorithm_segmentsize", "1048576"]
                found["Open MPI, ring"] = lambda sizes: self.mpi(ring, "mpi_operations", operation, sizes)
        if os.path.exists(os.path.join(self.tools, "mpich_operations")):
            found["MPICH"] = lambda sizes: self.mpi(["mpirun.mpich"], "mpich_operations", operation, sizes)
        if self.arguments.gloo and operation != "reduce_scatter":
            found["Gloo"] = lambda sizes: self.gloo(operation, sizes)
        return found

    def run(self, operation, sizes, samples):
        """{contender: {size: [time]}} of the samples and of the measurements of this call."""
        contenders = self.contenders(operation)
        for _ in range(self.arguments.rounds):
            for size in sizes:
                for name, measure in contenders.items():
                    if name == "Gloo" and size in samples.of(operation, self.ranks, name):  # much slower, and slow to start: once
                        continue
                    for measured, time in measure([size]).items():
                        samples.add(operation, self.ranks, name, measured, time)
        names = [name for name in CONTENDERS if name in contenders or samples.of(operation, self.ranks, name)]
        return {name: samples.of(operation, self.ranks, name) for name in names}


class Samples:
    """Times in microseconds by operation, ranks, contender and size; with a file, also one JSON object per line there."""

    def __init__(self, path):
        self.path, self.times = path, {}
        if path and os.path.exists(path):
            with open(path, encoding="ascii") as file:
                for line in file:
                    self.keep(**json.loads(line))

    def keep(self, operation, ranks, contender, bytes, time_us):
        self.times.setdefault((operation, ranks, contender), {}).setdefault(bytes, []).append(time_us)

    def add(self, operation, ranks, contender, size, time):
        sample = {"operation": operation, "ranks": ranks, "contender": contender, "bytes": size, "time_us": time}
        self.keep(**sample)
        if self.path:
            with open(self.path, "a", encoding="ascii") as file:
                file.write(json.dumps(sample) + "\n")

    def of(self, operation, ranks, contender):
        """{size: [time]}"""
        return self.times.get((operation, ranks, contender), {})


def ratio_of(peer, own):
    """The median of the ratios of the rounds, in each of which the machine had about one speed; if rounds do not pair, the ratio of the medians."""
    if len(peer) != len(own):
        return statistics.median(peer) / statistics.median(own)
    return statistics.median(theirs / ours for theirs, ours in zip(peer, own))


def best_over_weft(times, size):
    own = times["weft"].get(size)
    return min((ratio_of(by_size[size], own) for name, by_size in times.items() if own and not name.startswith("weft") and size in by_size), default=None)


def cells_of(times, names, size):
    medians = [f"{statistics.median(times[name][size]):.2f}" if size in times.get(name, {}) else "-" for name in names]
    ratio = best_over_weft(times, size)
    return medians + [f"{ratio:.2f}" if ratio else "-"]


def print_table(operation, ranks, times, sizes):
    names = list(times)
    print(f"\n# {operation}, {ranks} ranks, microseconds\n{'size':>8} " + " ".join(f"{name:>15}" for name in names) + f" {'best/weft':>10}")
    for size in sizes:
        cells = cells_of(times, names, size)
        label = "-" if operation == "barrier" else name_size(size)
        print(f"{label:>8} " + " ".join(f"{cell:>15}" for cell in cells[:-1]) + f" {cells[-1]:>10}", flush=True)


def print_markdown(ranks, found):
    """One table of all operations of a rank count; found: [(operation, sizes, times)]."""
    names = sorted({name for _, _, times in found for name in times}, key=CONTENDERS.index)
    print(f"\n{ranks} ranks, microseconds:\n\n| operation, size | " + " | ".join(names) + " | best peer over weft |\n|---|" + "---:|" * (len(names) + 1))
    for operation, sizes, times in found:
        for size in sizes:
            label = operation if operation == "barrier" else f"{operation}, {name_size(size)}"
            print("| " + " | ".join([label] + cells_of(times, names, size)) + " |", flush=True)


def draw(arguments, ratios):
    """A chart for each rank count, with a curve for each operation: best peer over weft by size."""
    counts = sorted({ranks for _, ranks in ratios})
    stem, ending = os.path.splitext(arguments.plot)
    for ranks in counts:
        with tempfile.TemporaryDirectory() as directory:
            words = []
            for number, operation in enumerate(operation for operation in OPERATIONS if len(ratios.get((operation, ranks), [])) > 1):
                path = os.path.join(directory, f"{operation}.csv")
                with open(path, "w", encoding="ascii") as file:
                    file.write("bytes,ratio\n" + "".join(f"{size},{ratio}\n" for size, ratio in ratios[operation, ranks]))
                words.append(f"{operation}={path},color={number % COLORS}" + (",dashed" if number >= COLORS else ""))
            if not words:
                continue
            title = f"best peer's time over weft's, {ranks} ranks" + (", tcp on loopback" if arguments.tcp else " of one host")
            out = arguments.plot if len(counts) == 1 else f"{stem}-{ranks}{ending}"
            subprocess.run([os.path.join(arguments.build, "tools", "weft"), "bench", "plot", "--title", title, "--subtitle", "f32, medians; above 1: weft is faster", "--x", "bytes", "--y", "ratio", "--x-bytes",
                            "--y-log", "--x-label", "size (bytes)", "--y-label", "times as fast as the best peer", "-o", out, *words], check=True)


def look_for_peers(arguments):
    for program, package in (("mpi_operations", "openmpi-bin libopenmpi-dev"), ("mpich_operations", "mpich libmpich-dev")):
        subprocess.run(["ninja", "-C", arguments.build, f"tools/{program}"], capture_output=True, check=False)
        if not os.path.exists(os.path.join(arguments.build, "tools", program)):
            print(f"# no {program} in {arguments.build}: that column is left out (apt-get install {package}, then meson setup)")
    if arguments.gloo and subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode != 0:
        print("# no PyTorch: the column of Gloo is left out (apt-get install python3-torch)")
        arguments.gloo = False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("-n", default="2,4", help="rank counts (default 2,4)")
    parser.add_argument("--ops", default=",".join(OPERATIONS))
    parser.add_argument("--sizes", default="8,4K,64K,1M,25M,64M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--plot", help="an SVG of the ratios; of several rank counts one each, PLOT-2.svg and so on")
    parser.add_argument("--samples", help="add what is measured to this file, and show all that is in it; --rounds 0 measures nothing")
    parser.add_argument("--no-gloo", dest="gloo", action="store_false")
    parser.add_argument("--tcp", nargs="?", const="ucx", help="weft over this backend, ucx or tcp (default ucx), and the others over tcp, on the loopback of a network namespace of its own, with cubic, or reno where the kernel allows nothing else; root")
    arguments = parser.parse_args()
    unknown = set(arguments.ops.split(",")) - set(OPERATIONS)
    if unknown:
        parser.error(f"there is no operation {', '.join(sorted(unknown))}")
    if arguments.rounds > 0:
        look_for_peers(arguments)
    ratios, samples = {}, Samples(arguments.samples)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # also removes the namespace
    with netns.private_loopback() if arguments.tcp else contextlib.nullcontext(([], "")) as (inside, congestion_control):
        if arguments.tcp:
            print(f"# tcp over the loopback of a private namespace, congestion control {congestion_control} on both sides")
        for ranks in (int(word) for word in arguments.n.split(",")):
            contest, found = Contest(arguments, ranks, inside), []
            for operation in arguments.ops.split(","):
                sizes = [8] if operation == "barrier" else [parse_size(word) for word in arguments.sizes.split(",")]
                times = contest.run(operation, sizes, samples)
                found.append((operation, sizes, times))
                if not arguments.markdown:
                    print_table(operation, ranks, times, sizes)
                ratios[operation, ranks] = [(size, ratio) for size in sizes if (ratio := best_over_weft(times, size))]
            if arguments.markdown:
                print_markdown(ranks, found)
    if arguments.plot:
        draw(arguments, ratios)


if __name__ == "__main__":
    main()
