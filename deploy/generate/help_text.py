"""help_text.py - reads the output of --help, which tools/cli.c writes from the option table of a command.

`weft --help` and `weft bench --help` list commands; each command's --help has usage lines, a text, options, notes.
"""

import dataclasses
import os
import re
import subprocess

OPTION = re.compile(r"^  (?:-(?P<short>\w), |    )--(?P<name>[a-z0-9-]+)(?: (?P<argument>[^ ]+))?(?:  +(?P<help>.+))?$")
CONTINUATION = re.compile(r"^ {18,}(\S.*)$")
COMMAND = re.compile(r"^  ([a-z][\w-]*)  +(\S.*)$")


@dataclasses.dataclass
class Option:
    name: str
    short: str  # "": none
    argument: str  # "": takes none
    help: str


@dataclasses.dataclass
class Help:
    usage: list
    about: list  # lines between usage and options
    options: list
    notes: list  # lines below the options
    commands: list  # (name, help)


def run(words):
    """Standard output of a command that must succeed; variables of weft are left out, since some change the output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=60).stdout


def parse(text):
    found = Help([], [], [], [], [])
    for line in text.rstrip("\n").split("\n"):
        option, continuation, command = OPTION.match(line), CONTINUATION.match(line), COMMAND.match(line)
        if line.startswith("usage: "):
            found.usage.append(line[len("usage: "):])
        elif line.startswith("       ") and not (found.about or found.options or found.commands):
            found.usage.append(line.strip())
        elif option:
            found.options.append(Option(option["name"], option["short"] or "", option["argument"] or "", option["help"] or ""))
        elif continuation and found.options and not found.notes:
            found.options[-1].help = (found.options[-1].help + " " + continuation[1]).strip()
        elif found.options:
            found.notes.append(line)
        else:
            found.about.append(line)
            if command:
                found.commands.append((command[1], command[2]))
    return found if found.options else list_of_commands(found)


def list_of_commands(found):
    """Without options the text is a list of commands: the lines above it are `about`, those below it `notes`."""
    is_row = [bool(COMMAND.match(line)) for line in found.about]
    if True in is_row:
        first, last = is_row.index(True), len(is_row) - is_row[::-1].index(True)
        found.about, found.notes = found.about[:first], found.about[last:]
    return found


def read(words):
    """Help of one command: read(["weft", "run"])."""
    return parse(run(words + ["--help"]))


def read_tree(program):
    """{words: Help} of `program`, its commands and their commands: {"": ..., "run": ..., "bench all_reduce": ...}."""
    tree, pending = {}, [""]
    while pending:
        words = pending.pop(0)
        tree[words] = read([program] + words.split())
        if not tree[words].options:
            pending += [f"{words} {name}".strip() for name, _ in tree[words].commands]
    return tree
