"""model_steps.py - measured over modelled time of collectives, and where that quotient leaps.

    tools/dev/model-steps [--build build] [--transport shm,tcp] [--ranks 2,3,4,6,8] [--begin 8] [--end 16M]
                          [--plan auto] [--rounds 5] [--cycles 4] [--links FILE]

For each transport, round after round, and each number of ranks:

  1. `weft bench calibrate` writes a link table (unless --links).
  2. `weft bench all_reduce` runs over all sizes, --cycles times.
  3. The median time of each row is divided by the time that the model gives for the plan that ran.

The output is the quotient of each size (down) and number of ranks (across), the median of all rounds, with the first
letters of the plan. A quotient more than 1.3 times that of its neighbour, the next size or the next number of ranks, is
a leap: it is marked with ! and listed. Exit status 1 if there is one.

Each round has its own calibration, because the speed of a machine changes within minutes: a table of another minute would
show that change. The scatter of calibrations is therefore part of the quotients. The first cycle of a job is dropped: its
pages are new, and the scheduler has not yet spread ranks that share processors. If cells leap, all numbers of ranks with a
leap are measured for further rounds, at most twice, and all samples of a cell count: no leap is dropped because it was seen
once. If ranks outnumber the processors of this host, the calibration with as many ranks contains that cost.

The output has the scatter of each cell, too: the upper quartile over the lower. It does not excuse a leap.

The model is that of the library, as weft_explain prints it; also that of the one-host plan (docs/collectives.md)."""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

STEP = 1.3


def bench(build, words, environment):
    done = subprocess.run([os.path.join(build, "tools", "weft"), "bench", *words], env={**os.environ, **environment}, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"weft bench {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def models(build, transport, ranks, options, links):
    """{bytes: {plan: us}} from weft_explain."""
    text = bench(build, ["all_reduce", "-n", str(ranks), "-b", options.begin, "-e", options.end, "-f", "4", "--iters", "1", "--warmup", "0", "-c", "0",
                         "--transport", transport, "--explain"], {"WEFT_COLLECTIVE_LINKS": links})
    found = {}
    for line in text.splitlines():
        head = re.search(r"all_reduce (\d+) B, \d+ ranks:", line)
        if head:
            size = int(head.group(1))
            found[size] = {plan: float(us) for plan, us in re.findall(r"([\w-]+) ([0-9.]+) us,", line)}
    return found


def measure(build, transport, ranks, options, links):
    """{bytes: [(us, plan)]}, one per cycle except the first."""
    rows = {}
    for line in bench(build, ["all_reduce", "-n", str(ranks), "-b", options.begin, "-e", options.end, "-f", "4", "-c", "0", "--transport", transport,
                              "--plan", options.plan, "--cycles", str(options.cycles + 1), "--json"], {"WEFT_COLLECTIVE_LINKS": links}).splitlines():
        row = json.loads(line)
        rows.setdefault(row["bytes"], []).append((row["p50_us"], row["plan_taken"]))
    return {size: cycles[1:] for size, cycles in rows.items()}


def quotients_of(modelled, measured):
    """{bytes: (quotient, plan)} of one round: the median over the cycles whose plan the model has."""
    found = {}
    for size, cycles in measured.items():
        known = [(us / modelled[size][plan], plan) for us, plan in cycles if modelled.get(size, {}).get(plan)]
        if known:
            found[size] = statistics.median(quotient for quotient, _ in known), known[-1][1]
    return found


class Measurement:
    """Quotients of one transport over all rounds."""

    def __init__(self, build, transport, options, folder):
        self.build, self.transport, self.options, self.folder = build, transport, options, folder
        self.samples, self.plans = {}, {}

    def links(self, ranks):
        """A new link table; printed the first time."""
        if self.options.links:
            return self.options.links
        path = os.path.join(self.folder, f"{self.transport}-{ranks}")
        first = not os.path.exists(path)
        output = bench(self.build, ["calibrate", "-n", str(ranks), "--transport", self.transport, "--write", path], {})
        if first:
            print(f"{ranks} ranks: {output}", end="", flush=True)
        return path

    def round(self, counts):
        for ranks in counts:
            links = self.links(ranks)
            modelled = models(self.build, self.transport, ranks, self.options, links)
            for size, (quotient, plan) in quotients_of(modelled, measure(self.build, self.transport, ranks, self.options, links)).items():
                self.samples.setdefault((size, ranks), []).append(quotient)
                self.plans[size, ranks] = plan

    def table(self):
        """{(bytes, ranks): (quotient, plan)}"""
        return {key: (statistics.median(values), self.plans[key]) for key, values in self.samples.items()}

    def scatter(self):
        """{(bytes, ranks): upper over lower quartile of the samples}"""
        return {key: scatter_of(values) for key, values in self.samples.items()}


def scatter_of(values):
    if len(values) < 2:
        return 1.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high / low


def tables_of(measurement, options):
    for _ in range(options.rounds):
        measurement.round(options.ranks)
    for _ in range(2):
        found = leaps(measurement.table(), options.ranks)
        leaping = [ranks for ranks in options.ranks if any(ranks in (one[1], other[1]) for one, other, _ in found)]
        for _ in range(options.rounds if leaping else 0):
            measurement.round(leaping)
    return measurement.table(), measurement.scatter()


def leaps(table, ranks):
    """Neighbours whose quotients differ by more than STEP."""
    sizes = sorted({size for size, _ in table})
    found = []
    for i, size in enumerate(sizes):
        for k, count in enumerate(ranks):
            for other in ([(sizes[i + 1], count)] if i + 1 < len(sizes) else []) + ([(size, ranks[k + 1])] if k + 1 < len(ranks) else []):
                if (size, count) in table and other in table:
                    a, b = table[size, count][0], table[other][0]
                    if max(a, b) / min(a, b) > STEP:
                        found.append(((size, count), other, max(a, b) / min(a, b)))
    return found


def show(transport, table, scatter, ranks, out=sys.stdout):
    sizes = sorted({size for size, _ in table})
    found = leaps(table, ranks)
    marked = {cell for one, other, _ in found for cell in (one, other)}
    print(f"\n{transport}: measured / modelled, all_reduce of f32\n{'bytes':>10} " + " ".join(f"{count:>14}" for count in ranks), file=out)
    for size in sizes:
        cells = []
        for count in ranks:
            quotient, plan = table.get((size, count), (None, ""))
            cells.append(f"{quotient:6.2f}{'!' if (size, count) in marked else ' '}{plan[:7]:>7}" if quotient else " " * 14)
        print(f"{size:>10} " + " ".join(cells), file=out)
    for one, other, step in sorted(found, key=lambda leap: -leap[2]):
        print(f"  leap {step:.2f}: {one[0]} B, {one[1]} ranks ({table[one][1]} {table[one][0]:.2f}) and {other[0]} B, {other[1]} ranks "
              f"({table[other][1]} {table[other][0]:.2f}); these two scatter by {scatter[one]:.2f} and {scatter[other]:.2f}", file=out)
    if not found:
        print(f"  no leap above {STEP}", file=out)
    if scatter:
        print(f"  one cell measured again scatters by {statistics.median(scatter.values()):.2f} (median of cells, upper over lower quartile), at most "
              f"{max(scatter.values()):.2f}", file=out)
    return len(found)


def main():
    parser = argparse.ArgumentParser(prog="tools/dev/model-steps", description="measured over modelled time of all_reduce by size and ranks; leaps above 1.3")
    parser.add_argument("--build", default="build")
    parser.add_argument("--transport", default="shm,tcp")
    parser.add_argument("--ranks", default="2,3,4,6,8")
    parser.add_argument("--begin", default="8")
    parser.add_argument("--end", default="16M")
    parser.add_argument("--plan", default="auto")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each with its own calibration (default 5)")
    parser.add_argument("--cycles", type=int, default=4, help="cycles of a round over all sizes in one job, after a first one that is dropped (default 4)")
    parser.add_argument("--links", help="link table of `weft bench calibrate` (default: measured in each round)")
    options = parser.parse_args()
    options.ranks = [int(count) for count in options.ranks.split(",")]
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        for transport in options.transport.split(","):
            total += show(transport, *tables_of(Measurement(options.build, transport, options, folder), options), options.ranks)
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
