"""convergence.py - accuracy with every codec: trains the Fashion-MNIST perceptron for the same number of steps, dense and
with each codec, from several seeds. Prints a Markdown table of mean and spread, and of the difference to dense seed by
seed: the noise of the seed is in both, so the difference is the effect of the codec.

    python3 -B tools/dev/convergence.py --build build                      # about 25 minutes on two cores
    python3 -B tools/dev/convergence.py --build build --epochs 1 --hidden 128 --seeds 1,2,3 --only "dense;sign"

A run with a result is skipped. There are no limits to pass; docs/performance.md has a table.
"""

import argparse
import glob
import os
import re
import statistics
import sys

import jobs

# Name in the table, codec, further options of the trainer. Deep gradient compression has the momentum in the codec, so
# the optimiser has none. Random-k has none either, because momentum would repeat large late updates.
PLAIN = ["--momentum", "0", "--lr", "0.5"] # the effective learning rate of 0.05 with a momentum of 0.9
WAYS = [
    ("dense", "dense", []),
    ("f16", "f16", []),
    ("bf16", "bf16", []),
    ("int8", "int8", []),
    ("int4", "int4", []),
    ("e4m3", "e4m3", []),
    ("e5m2", "e5m2", []),
    ("sign", "sign", []),
    ("PowerSGD 1", "powersgd:rank=1", []),
    ("PowerSGD 4", "powersgd:rank=4", []),
    ("PowerSGD 4, twice a step", "powersgd:rank=4,iterations=2", []),
    ("top-k 1 %", "topk:ratio=0.01", []),
    ("top-k 0.1 %", "topk:ratio=0.001", []),
    ("deep gradient compression 0.1 %", "topk:ratio=0.001,momentum=0.9,nesterov=1,warmup_steps={fifth}", ["--momentum", "0"]),
    ("random-k 10 %", "randomk:ratio=0.1", PLAIN),
    ("random-k 1 %", "randomk:ratio=0.01,feedback=0.99", PLAIN),
    ("random-k 10 %, with momentum", "randomk:ratio=0.1", []),
]


def parse_options():
    parser = argparse.ArgumentParser(description="accuracy of every codec at equal steps")
    parser.add_argument("--build", default="build")
    parser.add_argument("--out", default="convergence-out")
    parser.add_argument("--mode", default="all_reduce", choices=["all_reduce", "server"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--only", default="", help="names of the table, or codecs, separated by semicolons")
    return parser.parse_args()


def chosen_ways(only):
    if not only:
        return WAYS
    wanted = [word.strip() for word in only.split(";")]
    ways = [way for way in WAYS if way[0] in wanted or way[1] in wanted]
    if not ways:
        sys.exit(f"convergence: --only {only}: none of {', '.join(way[0] for way in WAYS)}")
    return ways


def slug_of(name):
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def train(options, programs, steps, way, seed):
    name, codec, more = way
    codec = codec.format(fifth=steps // 5)
    slug = slug_of(name)
    path = os.path.join(options.out, f"{slug}-e{options.epochs}-h{options.hidden}-n{options.workers}-{options.mode}-s{seed}.json")
    result = jobs.read_result(path)
    if result is None:
        words = ["--mode", options.mode, "--codec", codec, "--steps", str(steps), "--hidden", str(options.hidden), "--batch", str(options.batch),
                 "--seed", str(seed), "--eval-every", str(steps), "--json", path] + more
        shards = 1 if options.mode == "server" else 0
        jobs.run_here(programs, shards, options.workers, words, os.path.join(options.out, "logs", f"{slug}-s{seed}"), 3600,
                      environment={"OPENBLAS_NUM_THREADS": "1"})
        result = jobs.read_result(path)
        if result is None:
            raise jobs.JobFailed(f"{name}, seed {seed}: no report in {path}")
    return result


def diverged(options, way):
    pattern = os.path.join(options.out, "logs", slug_of(way[0]) + "-s*", "rank*.log")
    return any("is not finite" in open(path, errors="replace").read() for path in glob.glob(pattern))


def row(name, results, dense):
    accuracies = [100 * result["accuracy"] for result in results]
    apart = [100 * (result["accuracy"] - other["accuracy"]) for result, other in zip(results, dense)]
    spread = max(accuracies) - min(accuracies)
    difference = f"{statistics.mean(apart):+.2f} ({min(apart):+.2f} to {max(apart):+.2f})"
    share = statistics.mean(other["sent_bytes"] / result["sent_bytes"] for result, other in zip(results, dense))
    return f"| {name} | {statistics.mean(accuracies):.2f} | {spread:.2f} | {difference} | {share:.1f} |"


def main():
    options = parse_options()
    programs = jobs.Programs(options.build)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    steps = 60000 * options.epochs // (options.batch * options.workers)
    ways = chosen_ways(options.only)
    os.makedirs(options.out, exist_ok=True)
    try:
        dense = [train(options, programs, steps, WAYS[0], seed) for seed in seeds]
        lines = [f"{options.workers} workers, {options.mode}, 784-{options.hidden}-{options.hidden}-10, {steps} steps of {options.workers} x"
                 f" {options.batch}, seeds {', '.join(map(str, seeds))}", "",
                 "| codec | accuracy, mean (%) | spread | difference to dense, seed by seed (points) | times fewer bytes sent |",
                 "|---|---:|---:|---:|---:|"]
        for way in ways:
            try:
                lines.append(row(way[0], [train(options, programs, steps, way, seed) for seed in seeds], dense))
            except jobs.JobFailed as failure: # divergence at this learning rate is a result
                if not diverged(options, way):
                    raise failure
                lines.append(f"| {way[0]} | - | - | diverged | - |")
            print(lines[-1], file=sys.stderr, flush=True)
    except jobs.JobFailed as failure:
        sys.exit(f"convergence: {failure}")
    print("\n".join(lines))
    with open(os.path.join(options.out, "table.md"), "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
