#!/usr/bin/python3
"""comment_words.py - frequency of chosen words in the comments of .c, .h and .cu files, per folder and per 10,000 words.

    tools/dev/comment_words.py                       # one row per group of words, one column per top-level folder
    tools/dev/comment_words.py --depth 2 --tests     # folders of two levels, tests included
    tools/dev/comment_words.py --json                # counts and frequencies for programs
    tools/dev/comment_words.py --list nobody         # the places of one group, FILE:LINE: TEXT

tests/tidy imports count_tree() and compares the counts with its limits. A word is a run of letters with an optional
apostrophe part; parts of identifiers with an underscore or a digit are not words."""
import argparse
import json
import os
import re
import signal
import sys

GROUPS = {
    "who": r"who|whom|whoever",
    "nobody": r"nobody|somebody|everybody",
    "say": r"say|says|said",
    "tell": r"told|tells?",
    "come": r"comes?|came",
    "fast path": r"(?:fast|slow)[ -]paths?|falls? back|fell back|fallback",
    "complete": r"completes?|completed|completions?",
    "oversubscribed": r"oversubscribed",
    "non-temporal": r"non-temporal",
    "he": r"he|his",
    "alike": r"alike",
    "private": r"letters?|rooms?|halls?|brief|ahead",
}
SOURCES = (".c", ".h", ".cu")
RELEASED = "weft-"  # folders of headers as they were released; not edited
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
WORD = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z]+(?:'[a-z]+)?(?![A-Za-z0-9_])")
PATTERNS = {name: re.compile(rf"(?<![A-Za-z0-9_-])(?:{words})(?![A-Za-z0-9_-])", re.I) for name, words in GROUPS.items()}


def comments_of(text):
    """Yields (offset, comment) of C source text. Comment marks inside strings do not count."""
    for match in TOKEN.finditer(text):
        if match.group(0).startswith("/"):
            yield match.start(), match.group(0)


def plain(comment):
    """The comment without its marks and with single spaces, so that an expression may span two lines."""
    return re.sub(r"\s*\n\s*\**\s*", " ", comment.strip("/*")).replace("\t", " ")


def sources(root, tests):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "build", RELEASED)) and (tests or folder != root or f != "tests"))
        for name in sorted(names):
            if name.endswith(SOURCES):
                yield os.path.relpath(os.path.join(folder, name), root)


def count_text(text):
    """Number of words and {group: occurrences} in the comments of one source."""
    words, counts = 0, dict.fromkeys(GROUPS, 0)
    for _, comment in comments_of(text):
        body = plain(comment)
        words += len(WORD.findall(body))
        for name, pattern in PATTERNS.items():
            counts[name] += len(pattern.findall(body))
    return words, counts


def count_tree(root, depth=1, tests=False):
    """{folder: {"words": n, "counts": {group: n}, "per_10000": {group: x}}}; the whole tree is the folder "total"."""
    found = {}
    for path in sources(root, tests):
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            words, counts = count_text(file.read())
        for folder in ("/".join(path.split("/")[:-1][:depth]) or ".", "total"):
            row = found.setdefault(folder, {"words": 0, "counts": dict.fromkeys(GROUPS, 0)})
            row["words"] += words
            for name, count in counts.items():
                row["counts"][name] += count
    for row in found.values():
        row["per_10000"] = per_10000(row["words"], row["counts"])
    return found


def per_10000(words, counts):
    return {name: round(1e4 * count / words, 1) if words else 0.0 for name, count in counts.items()}


def difference(whole, part):
    """The row of what is in `whole` and not in `part`."""
    words = whole["words"] - part["words"]
    counts = {name: count - part["counts"][name] for name, count in whole["counts"].items()}
    return {"words": words, "counts": counts, "per_10000": per_10000(words, counts)}


def count_documents(root):
    """The row of all .md files but docs/decisions, without code in backquotes."""
    words, counts = 0, dict.fromkeys(GROUPS, 0)
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "build")) and f != "decisions")
        for name in sorted(names):
            if not name.endswith(".md"):
                continue
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                text = re.sub(r"```.*?```|`[^`\n]*`", "", file.read(), flags=re.S)
            words += len(WORD.findall(text))
            for group, pattern in PATTERNS.items():
                counts[group] += len(pattern.findall(text))
    return {"words": words, "counts": counts, "per_10000": per_10000(words, counts)}


def print_table(found):
    last = [f for f in ("total", "tests", "documents") if f in found]  # tests and documents are not part of the total
    folders = sorted(f for f in found if f not in last) + last
    lines = [["per 10,000 words", "words"] + list(GROUPS)]
    for folder in folders:
        row = found[folder]
        lines.append([folder, f"{row['words']:,}"] + [f"{row['per_10000'][name]:.1f}" for name in GROUPS])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("  ".join(text.ljust(width) if i == 0 else text.rjust(width) for i, (text, width) in enumerate(zip(line, widths))))


def print_places(root, group, tests):
    for path in sources(root, tests):
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            text = file.read()
        for start, comment in comments_of(text):
            for match in PATTERNS[group].finditer(comment):
                at = start + match.start()
                line = text[text.rfind("\n", 0, at) + 1:(text + "\n").find("\n", at)]
                print(f"{path}:{text.count(chr(10), 0, at) + 1}: {line.strip()}")


def main():
    parser = argparse.ArgumentParser(prog="tools/dev/comment_words.py", allow_abbrev=False,
                                     description="Frequency of chosen words in comments, per 10,000 words.")
    parser.add_argument("root", nargs="?", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."),
                        help="root of the tree (default: this one)")
    parser.add_argument("--depth", type=int, default=1, help="levels of folders that get a line of their own (default 1)")
    parser.add_argument("--tests", action="store_true", help="count tests/ as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--list", choices=list(GROUPS), metavar="GROUP", help="print the places of one group: " + ", ".join(GROUPS))
    options = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if options.list:
        print_places(options.root, options.list, options.tests)
        return 0
    found = count_tree(options.root, options.depth, options.tests)
    if not found:
        print(f"tools/dev/comment_words.py: there is no .c, .h or .cu file below {options.root}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(found, indent=1, sort_keys=True))
    else:
        print_table(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
