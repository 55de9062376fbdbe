"""report.py - table (text and Markdown) and plots of the quickstart, made from the results of its runs."""

import csv
import json
import os
import subprocess

HEADS = [("link", ""), ("way", ""), ("accuracy", "%"), ("steps", ""), ("training", "s"), ("images/s", ""), ("sent", "MB/worker"),
         ("received", "MB/worker"), ("of dense", "bytes/step"), ("exposed", "% of step"), ("dense's accuracy", "after s"), ("bf16's accuracy", "after s")]
LEFT = 2  # columns aligned left


def load(path):
    with open(path + ".json") as file:
        return json.load(file)


def bytes_per_step(result):
    return (result["sent_bytes"] + result["received_bytes"]) / max(result["steps"], 1)


def seconds_to(result, accuracy):
    """Seconds until this run reached the accuracy; None: never."""
    for row in result["evaluations"]:
        if row["accuracy"] >= accuracy:
            return row["seconds"]
    return None


def table_rows(links, ways, results):
    rows = []
    for link in links:
        for way in ways:
            path = results.get((link[0], way[0]))
            if not path:
                continue
            result = load(path)
            dense_path = results.get((link[0], way[1]))  # the dense way of the same mode has the mode's name
            dense = load(dense_path) if dense_path else None
            ratio = f"1/{bytes_per_step(dense) / max(bytes_per_step(result), 1):.0f}" if dense and way[0] != way[1] else "1" if dense else "-"
            bf16_path = results.get((link[0], way[1] + "+bf16"))
            reached = [seconds_to(result, load(other)["accuracy"]) if other else None for other in (dense_path, bf16_path)]
            rows.append([link[1], way[3], f"{100 * result['accuracy']:.2f}", f"{result['steps']}", f"{result['seconds']:.1f}",
                         f"{result['images_per_second']:.0f}", f"{result['sent_bytes'] / 1e6:.1f}",
                         f"{result['received_bytes'] / 1e6:.1f}", ratio, f"{100 * result['exposed_share']:.1f}",
                         *(f"{seconds:.1f}" if seconds is not None else "-" for seconds in reached)])
    return rows


def text_table(rows):
    columns = [[name, unit] + [row[i] for row in rows] for i, (name, unit) in enumerate(HEADS)]
    widths = [max(len(cell) for cell in column) for column in columns]
    lines = []
    for line in range(len(rows) + 2):
        cells = [column[line].ljust(width) if i < LEFT else column[line].rjust(width)
                 for i, (column, width) in enumerate(zip(columns, widths))]
        lines.append("  ".join(cells).rstrip())
        if line >= 2 and line - 1 < len(rows) and rows[line - 1][0] != rows[line - 2][0]:
            lines.append("")
    return "\n".join(lines)


def markdown_table(rows):
    heads = [name + (f" ({unit})" if unit else "") for name, unit in HEADS]
    lines = ["| " + " | ".join(heads) + " |", "|" + "|".join("---" if i < LEFT else "---:" for i in range(len(HEADS))) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def draw(programs, output, title, subtitle, x, x_label, x_scale, x_axis, series):
    """Draws one chart with `weft bench plot`; the y axis begins below the last three quarters of the curves."""
    late = []
    for _, path, _, _ in series:
        with open(path + ".csv", newline="") as file:
            values = [100 * float(row["accuracy"]) for row in csv.DictReader(file) if row.get("accuracy")]
        late += values[len(values) // 4:]
    low = max(10, 5 * int(min(late) / 5)) if late else 10
    words = [programs.weft, "bench", "plot", "--title", title, "--subtitle", subtitle, "--x", x, "--x-label", x_label, "--x-scale",
             x_scale, "--y", "accuracy", "--y-scale", "100", "--y-label", "test accuracy (%)", "--y-min", str(low), x_axis, "-o", output]
    words += [f"{label}={path}.csv,color={color}{',dashed' if dashed else ''}" for label, path, color, dashed in series]
    subprocess.run(words, check=True)


def prefix_of(options):
    """Prefix of the names of table and plots; empty for the full run with seed 1."""
    return os.path.join(options.out, ("quick-" if options.quick else "") + (f"seed{options.seed}-" if options.seed != "1" else ""))


def draw_all(options, programs, links, ways, results):
    files = []
    codecs = ["dense", "powersgd:rank=4", "topk:ratio=0.01", "bf16"]
    for link in links:
        series = [(way[3], results[link[0], way[0]], codecs.index(way[2]), way[1] == "all_reduce")
                  for way in ways if (link[0], way[0]) in results]
        if not series:
            continue
        subtitle = "Fashion-MNIST, perceptron 784-1024-1024-10, 2 workers, 2 shards, " + link[1]
        prefix = prefix_of(options)
        for x, label, scale, axis, name in (("sent_bytes", "bytes sent per worker", "1", "--x-bytes", "bytes"),
                                           ("seconds", "seconds of training", "1", "--x-log", "time")):
            output = f"{prefix}accuracy-over-{name}-{link[0]}.svg"
            draw(programs, output, f"Accuracy over {name}, {link[1]}", subtitle, x, label, scale, axis, series)
            files.append(output)
    return files


def write(options, programs, links, ways, results, seconds, new):
    rows = table_rows(links, ways, results)
    if not rows:
        return
    prefix = prefix_of(options)
    with open(prefix + "table.txt", "w") as file:
        file.write(text_table(rows) + "\n")
    with open(prefix + "table.md", "w") as file:
        file.write(markdown_table(rows) + "\n")
    print("\n" + text_table(rows) + "\n")
    print("'of dense' compares the bytes of one step;\n"
          "'dense's accuracy' is the time until a run reached the final accuracy of dense in its mode; 'bf16's accuracy' likewise.")
    files = draw_all(options, programs, links, ways, results)
    print(f"{new} new of {len(rows)} runs, {seconds:.0f} s. Table: {prefix}table.txt, {prefix}table.md. Plots:")
    for file in files:
        print(f"  {file}")
