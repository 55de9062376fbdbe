"""overlap_plot.py - what communication adds to a step of the GPT, over the speed of the link.

    tools/dev/overlap-plot [--build build] [--out docs/plots]

build/tests/sim/sim_overlap runs once for each speed: virtual time, so equal in every run and on every machine. The charts
are drawn by `weft bench plot`: overlap-added.svg (ms added to the computation) and overlap-above.svg (percent above the
longer one of computation and traffic, which no way can go below)."""

import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile

MBITS = [10000, 5000, 2500, 1500, 1000, 700, 500, 350, 250, 150, 100]
WAYS = {"after": "after the backward pass", "backward": "inside the backward pass", "forward": "until the next forward pass"}
LINE = re.compile(r"(?P<mbits>\d+) Mbit/s: compute [\d.]+ ms, traffic [\d.]+ ms, (?P<way>\w+) +step [\d.]+ ms, "
                  r"added (?P<added>-?[\d.]+) ms, above the longer one (?P<above>-?[\d.]+) %")
CHARTS = {"added": ("Added to the computation of a step", "added (ms)"),
          "above": ("Step over the longer one of computation and traffic", "above it (%)")}


def parse(output):
    """[(mbits, way, added ms, above percent)] of the lines of sim_overlap; ValueError if a way is missing."""
    rows = [(int(match["mbits"]), match["way"], float(match["added"]), float(match["above"])) for match in LINE.finditer(output)]
    if [row[1] for row in rows] != list(WAYS):
        raise ValueError(f"sim_overlap printed the ways {[row[1] for row in rows]}, expected are {list(WAYS)}")
    return rows


def measure(build):
    rows = []
    for mbits in MBITS:
        command = [os.path.join(build, "tests", "sim", "sim_overlap"), "--rate", str(mbits * 125000)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
        rows += parse(done.stdout)
    return rows


def write(folder, rows):
    """One CSV for each way; returns {way: path}."""
    paths = {}
    for way in WAYS:
        paths[way] = os.path.join(folder, way + ".csv")
        with open(paths[way], "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["mbits", "added", "above"])
            writer.writerows([row[0], row[2], row[3]] for row in rows if row[1] == way)
    return paths


def draw(build, paths, column, output):
    title, label = CHARTS[column]
    words = [os.path.join(build, "tools", "weft"), "bench", "plot", "--title", title, "--subtitle",
             "GPT of 4 blocks of width 128, 2 ranks, 41 ms of computation, latency 20 us, virtual time", "--x", "mbits", "--x-label",
             "link (Mbit/s)", "--x-log", "--y", column, "--y-label", label, "--y-min", "0", "-o", output]
    words += [f"{label}={paths[way]},color={color}" for color, (way, label) in enumerate(WAYS.items())]
    subprocess.run(words, check=True, timeout=60)


def main(arguments):
    parser = argparse.ArgumentParser(prog="overlap-plot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--out", default=os.path.join("docs", "plots"))
    options = parser.parse_args(arguments)
    rows = measure(options.build)
    with tempfile.TemporaryDirectory() as folder:
        paths = write(folder, rows)
        for column in CHARTS:
            output = os.path.join(options.out, f"overlap-{column}.svg")
            draw(options.build, paths, column, output)
            print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
