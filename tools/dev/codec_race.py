"""codec_race.py - codec "auto" against every fixed codec, training the quickstart's network over shaped links.

Workers and a shard that only coordinates run in network namespaces (tc tbf on both ends of every link). The codecs
of a link run in turn, round after round, so that a slow spell of the machine affects all of them. The table compares
medians over the rounds: milliseconds per step without the first evaluation, and milliseconds per step of the whole
run. On a busy machine two runs of one codec differ by more than codecs do: use more rounds. Exit status 0: on every
link, auto is within the tolerance of the best fixed codec.
"""

import argparse
import csv
import json
import os
import statistics
import sys
import time

sys.dont_write_bytecode = True
import jobs  # noqa: E402
import netns  # noqa: E402
import report  # noqa: E402

LINKS = {"100m": ("100 Mbit/s", "100mbit"), "1g": ("1 Gbit/s", "1gbit"), "10g": ("10 Gbit/s", "10gbit"), "unlimited": ("unlimited", None)}
CODECS = "dense,bf16,int8,powersgd:rank=4,topk:ratio=0.01"
HEADS = ["link", "way", "step (ms)", "with start (ms)", "of best fixed", "steps", "accuracy (%)", "to {target} % (s)", "sent (MB/step)",
         "exposed (%)", "at the end, tensors"]


def parse_options():
    parser = argparse.ArgumentParser(prog="tools/dev/codec-race", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=__doc__.split("\n\n", 1)[1] + "\nRequires root (network namespaces).")
    parser.add_argument("--links", default=",".join(LINKS), help="some of " + ",".join(LINKS) + " (default: all)")
    parser.add_argument("--codecs", default=CODECS, help=f"fixed codecs, also the candidates of the codec tuner (default {CODECS})")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each codec (default 3)")
    parser.add_argument("--seconds", type=float, default=10, help="training time of a run, seconds (default 10)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shards", type=int, default=0, help="parameter-server shards (default 0: all-reduce mode)")
    parser.add_argument("--target", type=float, default=80, help="accuracy whose time is printed, percent (default 80)")
    parser.add_argument("--tolerance", type=float, default=15, help="percent by which auto may be slower (default 15)")
    parser.add_argument("--build", default="build", help="build directory (default build)")
    parser.add_argument("--resume", action="store_true", help="keep the runs whose results are in --out already")
    parser.add_argument("--out", default="codec-race-out", help="directory for results, logs, table and plots (default codec-race-out)")
    options = parser.parse_args()
    options.links = options.links.split(",")
    for name in options.links:
        if name not in LINKS:
            parser.error(f"--links {name}: expected some of {', '.join(LINKS)}")
    options.codecs = split_codecs(options.codecs)
    if options.rounds < 1 or options.seconds <= 0 or options.workers < 2 or options.shards < 0:
        parser.error("--rounds, --seconds and --workers must be positive, workers at least 2, --shards 0 or more")
    return options


def split_codecs(text):
    """Splits at commas, except before a further option of a codec (key=value without a name)."""
    codecs = []
    for piece in text.split(","):
        if codecs and "=" in piece and ":" not in piece:
            codecs[-1] += "," + piece
        else:
            codecs.append(piece)
    return codecs


def path_of(options, link, codec, round_):
    name = codec if not codec.startswith("auto") else "auto"
    return os.path.abspath(os.path.join(options.out, "results", f"{link}-{name.replace(':', '-').replace('=', '')}-{round_}"))


def mode_of(options):
    return "server" if options.shards else "all_reduce"


def run(options, programs, link, codec, round_):
    result = path_of(options, link, codec, round_)
    logs = os.path.abspath(os.path.join(options.out, "logs", os.path.basename(result)))
    words = ["--mode", mode_of(options), "--codec", codec, "--seed", str(round_ + 1), "--csv", result + ".csv", "--json", result + ".json",
             "--seconds", str(options.seconds), "--eval-seconds", str(options.seconds / 10)]
    shards = max(options.shards, 1)  # a shard without tensors coordinates
    nodes = [f"shard{i}" for i in range(shards)] + [f"worker{i}" for i in range(options.workers)]
    with netns.Network(nodes, LINKS[link][1]) as network, jobs.Group(logs) as group:
        jobs.start_by_hand(programs, group, shards, options.workers, [programs.trainer] + words, network, {"WEFT_LOG_LEVEL": "info"})
        group.wait(180 + 6 * options.seconds)
    if not jobs.read_result(result + ".json"):
        raise jobs.JobFailed(f"no result in {result}.json; logs are in {logs}")


def check_same(options):
    """Refuses --resume with other options than those of the kept results. Links and rounds may differ."""
    path, now = os.path.join(options.out, "results", "options.json"), {key: getattr(options, key) for key in ("codecs", "seconds", "workers", "shards")}
    if options.resume and os.path.exists(path):
        with open(path) as file:
            before = json.load(file)
        for key in now:
            if before.get(key) != now[key]:
                sys.exit(f"tools/dev/codec-race: --resume: the results in {options.out} are of --{key} {before.get(key)}, not {now[key]}; use another --out")
    with open(path, "w") as file:
        json.dump(now, file)


def measure(path, target):
    """Figures of one run."""
    with open(path + ".json") as file:
        result = json.load(file)
    with open(path + ".csv", newline="") as file:
        rows = [(int(row["step"]), float(row["seconds"])) for row in csv.DictReader(file)]
    middle = [row for row in rows if row[0] > 0]
    first, last = middle[min(2, len(middle) - 2)] if len(middle) > 2 else (0, 0.0), middle[-1]
    reached = [row["seconds"] for row in result["evaluations"] if 100 * row["accuracy"] >= target]
    return {
        "step_ms": 1e3 * (last[1] - first[1]) / max(last[0] - first[0], 1),
        "all_ms": 1e3 * result["seconds"] / max(result["steps"], 1),
        "steps": result["steps"],
        "accuracy": 100 * result["accuracy"],
        "reached": reached[0] if reached else None,
        "sent_mb": result["sent_bytes"] / 1e6 / max(result["steps"], 1),
        "exposed": 100 * result["exposed_share"],
        "codecs": in_use(result["tensors"]),
    }


def in_use(tensors):
    """The codecs of the tensors as text: '3 powersgd, 3 dense'"""
    names = [tensor["codec"].split(":")[0] for tensor in tensors]
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))


def median_of(runs, key):
    values = [run[key] for run in runs if run[key] is not None]
    return statistics.median(values) if 2 * len(values) > len(runs) else None


def text_of(value, form):
    return "-" if value is None else format(value, form)


def table_of(options, ways, measured):
    rows, worst = [], 0
    for link in options.links:
        best = min(median_of(measured[link, codec], "step_ms") for codec in options.codecs)
        for codec in ways:
            runs = measured[link, codec]
            step = median_of(runs, "step_ms")
            if codec not in options.codecs:
                worst = max(worst, step / best)
            rows.append([LINKS[link][0], "auto" if codec.startswith("auto") else codec, text_of(step, ".1f"), text_of(median_of(runs, "all_ms"), ".1f"),
                         text_of(step / best, ".2f"), text_of(median_of(runs, "steps"), ".0f"), text_of(median_of(runs, "accuracy"), ".1f"),
                         text_of(median_of(runs, "reached"), ".1f"), text_of(median_of(runs, "sent_mb"), ".3f"),
                         text_of(median_of(runs, "exposed"), ".0f"), runs[-1]["codecs"]])
    return rows, worst


def write_table(options, rows):
    heads = [head.format(target=f"{options.target:g}") for head in HEADS]
    widths = [max(len(row[i]) for row in [heads] + rows) for i in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))).rstrip()
             for row in [heads] + rows]
    marked = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(heads) - 2)] + ["| " + " | ".join(row) + " |" for row in rows]
    for name, text in (("table.txt", lines), ("table.md", marked)):
        with open(os.path.join(options.out, name), "w") as file:
            file.write("\n".join(text) + "\n")
    print("\n" + "\n".join(lines))


def draw(options, programs, ways):
    for link in options.links:
        series = [("auto" if codec.startswith("auto") else codec.replace("=", " "), path_of(options, link, codec, 0), i, codec.startswith("auto"))
                  for i, codec in enumerate(ways)]
        report.draw(programs, os.path.join(options.out, f"codec-race-{link}.svg"), f"Accuracy over time, {LINKS[link][0]}",
                    f"Fashion-MNIST, {mode_of(options).replace('_', '-')} mode, {options.workers} workers, first round", "seconds", "seconds of training", "1", "--x-log", series)


def main():
    options = parse_options()
    refusal = netns.allowed()
    if refusal:
        sys.exit(f"tools/dev/codec-race: network namespaces are not possible here: {refusal}")
    programs = jobs.Programs(options.build)
    ways = options.codecs + ["auto:" + ",".join(codec for codec in options.codecs if codec != "dense")]
    for directory in ("results", "logs"):
        os.makedirs(os.path.join(options.out, directory), exist_ok=True)
    check_same(options)
    measured, total, done = {}, len(options.links) * len(ways) * options.rounds, 0
    for link in options.links:
        for round_ in range(options.rounds):
            for codec in ways:
                done += 1
                if sys.stderr.isatty():
                    sys.stderr.write(f"\r[{done} of {total}] {LINKS[link][0]}, {codec[:40]:40}, {time.strftime('%H:%M:%S')} ")
                    sys.stderr.flush()
                if not (options.resume and jobs.read_result(path_of(options, link, codec, round_) + ".json")):
                    run(options, programs, link, codec, round_)
                measured.setdefault((link, codec), []).append(measure(path_of(options, link, codec, round_), options.target))
    rows, worst = table_of(options, ways, measured)
    write_table(options, rows)
    draw(options, programs, ways)
    print(f"\nauto takes at most {worst:.2f} of the best fixed codec's step; logs (with the decisions of the codec tuner) and results are in {options.out}")
    return 0 if worst <= 1 + options.tolerance / 100 else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (jobs.JobFailed, OSError) as error:
        sys.exit(f"tools/dev/codec-race: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
