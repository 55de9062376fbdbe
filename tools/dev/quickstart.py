"""quickstart.py - builds, trains in eight ways, and writes table and plots for tools/quickstart.

Every pair of link and way is one run with a result under OUT/results, whose name contains all options that change it.
A run with a result is skipped. Table and plots are made from the results alone.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time

import jobs
import netns
import report

SHARDS, WORKERS = 2, 2

# name, mode, codec, label
WAYS = [
    ("server", "server", "dense", "server, dense"),
    ("all_reduce", "all_reduce", "dense", "all-reduce, dense"),
    ("server+bf16", "server", "bf16", "server, bf16"),
    ("all_reduce+bf16", "all_reduce", "bf16", "all-reduce, bf16"),
    ("server+powersgd", "server", "powersgd:rank=4", "server, PowerSGD 4"),
    ("all_reduce+powersgd", "all_reduce", "powersgd:rank=4", "all-reduce, PowerSGD 4"),
    ("server+topk", "server", "topk:ratio=0.01", "server, top-k 1 %"),
    ("all_reduce+topk", "all_reduce", "topk:ratio=0.01", "all-reduce, top-k 1 %"),
]
# name, label, rate for tc, bytes per second, seconds of training for each way (None: all epochs)
LINKS = [
    ("loopback", "loopback", None, None, None),
    ("1g", "1 Gbit/s", "1gbit", 125000000, 12),
    ("100m", "100 Mbit/s", "100mbit", 12500000, 20),
]


def fail(sentence, status=1):
    print(f"tools/quickstart: {sentence}", file=sys.stderr)
    sys.exit(status)


def choose(given, known, option):
    names = [entry[0] for entry in known]
    wanted = given.split(",") if given else names
    for name in wanted:
        if name not in names:
            fail(f"{option} {name}: expected some of {', '.join(names)}", 2)
    return [entry for entry in known if entry[0] in wanted]


def parse_options():
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--links")
    parser.add_argument("--ways")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--out", default="quickstart-out")
    options = parser.parse_args()
    if not options.seed.isdigit():
        fail(f"--seed {options.seed}: expected a whole number", 2)
    options.links = choose(options.links or ("loopback" if options.quick else None), LINKS, "--links")
    options.ways = choose(options.ways, WAYS, "--ways")
    return options


class Progress:
    """On a terminal one line that is rewritten; otherwise one line per finished run."""

    def __init__(self, total):
        self.total, self.done, self.started = total, 0, time.monotonic()
        self.terminal = sys.stderr.isatty()

    def show(self, text):
        if not self.terminal:
            return
        filled = 24 * self.done // max(self.total, 1)
        line = f"[{'#' * filled}{'.' * (24 - filled)}] {self.done} of {self.total}  {text}"
        width = shutil.get_terminal_size().columns
        sys.stderr.write("\r" + line[: width - 1].ljust(width - 1))
        sys.stderr.flush()

    def finish(self, text):
        self.done += 1
        if self.terminal:
            sys.stderr.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
        print(f"{text}", flush=True)


def build(out, progress):
    """Builds into build/ with meson and ninja."""
    log_path = os.path.join(out, "build.log")
    commands = [["ninja", "-C", "build"]]
    if not os.path.exists("build/build.ninja"):
        commands.insert(0, ["meson", "setup", "build", "--buildtype=release"])
    with open(log_path, "w") as log:
        for words in commands:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for line in process.stdout:
                log.write(line)
                progress.show("building " + line.strip()[:60])
            if process.wait() != 0:
                fail(f"the build failed; the whole output is in {log_path}")
    for path in (PROGRAMS.weft, PROGRAMS.weftd, PROGRAMS.trainer):
        if not os.path.exists(path):
            fail(f"the build has made no {path}; see {log_path}")


PROGRAMS = jobs.Programs("build")


def trainer_arguments(options, way, link, result):
    _, mode, codec, _ = way
    words = ["--mode", mode, "--codec", codec, "--seed", options.seed, "--csv", result + ".csv", "--json", result + ".json"]
    if options.quick:
        return words + ["--steps", "80", "--eval-every", "20"]
    if link[4]:
        return words + ["--seconds", str(link[4]), "--eval-seconds", str(link[4] / 8)]
    return words


def run_name(options, link, way):
    return f"{'quick-' if options.quick else ''}{link[0]}-{way[0]}-seed{options.seed}"


def result_path(options, link, way):
    """Path of the report of the run, without .csv and .json."""
    return os.path.abspath(os.path.join(options.out, "results", run_name(options, link, way)))


def train(options, way, link, progress, network_refusal):
    """Trains one run. Returns the path of its result, and whether it ran now (False: the result existed)."""
    name, result = run_name(options, link, way), result_path(options, link, way)
    if jobs.read_result(result + ".json") and not options.again:
        return result, False
    started = time.monotonic()

    def watch():
        row = jobs.last_row(result + ".csv")
        seen = f"accuracy {100 * float(row['accuracy']):.1f} %" if row else "starting"
        progress.show(f"{link[1]}: {way[3]}, {seen}, {time.monotonic() - started:.0f} s")

    arguments = trainer_arguments(options, way, link, result)
    log_directory = os.path.abspath(os.path.join(options.out, "logs", name))
    limit = 900 if link[4] is None else 180 + 3 * link[4]  # limit for a run that hangs; generous for a busy machine
    if link[2] is None:
        jobs.run_here(PROGRAMS, SHARDS, WORKERS, arguments, log_directory, limit, watch)
    elif network_refusal:
        wrap = {"WEFT_TRANSPORT_WRAP": f"delay:rate_bytes={link[3]}"}
        jobs.run_here(PROGRAMS, SHARDS, WORKERS, arguments, log_directory, limit, watch, wrap)
    else:
        nodes = [f"shard{i}" for i in range(SHARDS)] + [f"worker{i}" for i in range(WORKERS)]
        with netns.Network(nodes, link[2]) as network:
            jobs.run_in_network(PROGRAMS, network, SHARDS, WORKERS, arguments, log_directory, limit, watch)
    if not jobs.read_result(result + ".json"):
        raise jobs.JobFailed(f"no result in {result}.json; logs are in {log_directory}")
    return result, True


def main():
    options = parse_options()
    for directory in ("results", "logs"):
        os.makedirs(os.path.join(options.out, directory), exist_ok=True)
    started = time.monotonic()
    progress = Progress(len(options.links) * len(options.ways))
    build(options.out, progress)
    network_refusal = netns.allowed() if any(link[2] for link in options.links) else None
    if network_refusal:
        print(f"network namespaces are not possible here ({network_refusal}): the transport of weft shapes the links instead")

    failures, new = [], 0
    for link in options.links:
        for way in options.ways:
            try:
                path, now = train(options, way, link, progress, network_refusal)
                new += now
                row = jobs.read_result(path + ".json")
                progress.finish(f"{link[1]}: {way[3]}: {100 * row['accuracy']:.2f} % after {row['steps']} steps, {row['seconds']:.1f} s"
                                + ("" if now else " (done before)"))
            except (jobs.JobFailed, OSError) as error:
                failures.append(f"{link[1]}: {way[3]}: {error}")
                progress.finish("FAILED " + failures[-1])

    # Table and plots contain all results of this seed, also those of earlier calls with other --links or --ways.
    paths = {(link[0], way[0]): result_path(options, link, way) for link in LINKS for way in WAYS}
    results = {key: path for key, path in paths.items() if jobs.read_result(path + ".json")}
    report.write(options, PROGRAMS, LINKS, WAYS, results, time.monotonic() - started, new)
    if failures:
        fail(f"{len(failures)} of {progress.total} runs failed; the first: {failures[0]}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("interrupted; what is done is kept, run it again to go on", 130)
