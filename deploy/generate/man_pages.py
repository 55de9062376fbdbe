#!/usr/bin/python3
"""man_pages.py PAGE VERSION WEFT WEFTD - prints a manual page with the macros of man(7): weft.1, weftd.8 or weft.ini.5.

Options are read from --help, the options of the configuration from weftd --help-options: the pages have no text of
their own about an option.
"""

import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import help_text  # noqa: E402

DATE = "2026-11-27"  # fixed: the same sources give the same pages
CONFIG_OPTION = re.compile(r"^(?P<section>\w+)\.(?P<name>\w+) = .*\n    (?P<help>.*)\n    Takes (?P<takes>.*); "
                           r"default \"(?P<default>.*)\"; variable (?P<variable>\w+); now from: .*\.$", re.M)


def escape(text):
    """Text without meaning for roff. Hyphens stay ASCII, so that a reader can copy options."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    return "\\&" + text if text.startswith((".", "'")) else text


def paragraph(lines):
    """Filled paragraphs; an empty line separates two, an indented line keeps its own line."""
    out, after_gap = [], True
    for line in lines:
        if not line.strip():
            after_gap = True
            continue
        if after_gap and out:
            out.append(".PP")
        elif line.startswith(" ") and out:
            out.append(".br")
        out.append(escape(line.strip()))
        after_gap = False
    return out


def synopsis(usage):
    out = []
    for line in usage:
        program, _, rest = line.partition(" ")
        out += [".PP" if out else "", f".B {escape(program)}", escape(rest)]
    return [line for line in out if line]


def options(found):
    out = []
    for option in found.options:
        head = f"\\fB\\-{option.short}\\fR, " if option.short else ""
        head += f"\\fB{escape('--' + option.name)}\\fR"
        head += f" \\fI{escape(option.argument)}\\fR" if option.argument else ""
        out += [".TP", head, escape(option.help)]
    return out


def header(name, section, version, about):
    return [f'.TH {name.upper()} {section} "{DATE}" "weft {version}" "weft"', ".SH NAME", f"{name} \\- {about}"]


def command_section(words, found, earlier):
    """A command whose options are those of an earlier one refers to it."""
    out = [f'.SS "weft {escape(words)}"'] + synopsis(found.usage) + [".PP"] + paragraph(found.about)
    same = next((other for other, help_of_other in earlier if help_of_other.options == found.options), None)
    if same:
        return out + [f"The options are those of weft {escape(same)}."]
    out += options(found)
    return out + ([".PP"] + paragraph(found.notes) if found.notes else [])


def weft_page(version, weft, _):
    tree = help_text.read_tree(weft)
    top = tree.pop("")
    out = header("weft", 1, version, "start, measure and examine jobs of weft")
    out += [".SH SYNOPSIS"] + synopsis(top.usage) + [".SH DESCRIPTION"]
    out += ["weft moves gradients between the processes of a training job.", "The commands are:"]
    for name, about in top.commands:
        out += [".TP", f".B {name}", escape(about)]
    out += [".PP"] + paragraph(top.notes) + [".SH COMMANDS"]
    for i, (words, found) in enumerate(tree.items()):
        earlier = list(tree.items())[:i]
        out += command_section(words, found, earlier) if found.options else command_list(words, found)
    return out + environment() + [".SH SEE ALSO", ".BR weftd (8),", ".BR weft.ini (5)"]


def command_list(words, found):
    out = [f'.SS "weft {escape(words)}"'] + synopsis(found.usage) + [".PP"] + paragraph(found.about)
    for name, about in found.commands:
        out += [".TP", f".B {escape(name)}", escape(about)]
    return out + [".PP"] + paragraph(found.notes)


def environment():
    rows = [("WEFT_COORDINATOR", "Address of the coordinator, as host:port."), ("WEFT_JOB", "Name of the job."),
            ("WEFT_RANK", "Rank of a worker, from 0."),
            ("WEFT_SECRET_FILE", "File with the secret of the job, readable only by its owner."),
            ("WEFT_CONFIG", "Configuration file, see weft.ini(5).")]
    out = [".SH ENVIRONMENT"]
    for name, about in rows:
        out += [".TP", f".B {name}", escape(about)]
    return out + [".PP", "Each option of the configuration has a variable too, see", ".BR weft.ini (5)."]


def weftd_page(version, _, weftd):
    found = help_text.read([weftd])
    out = header("weftd", 8, version, "parameter\\-server shard and coordinator of a job of weft")
    out += [".SH SYNOPSIS"] + synopsis(found.usage) + [".SH DESCRIPTION"] + paragraph(found.about)
    out += [".SH OPTIONS"] + options(found)
    out += [".SH EXIT STATUS"] + paragraph(found.notes) + environment()
    return out + [".SH SEE ALSO", ".BR weft (1),", ".BR weft.ini (5)"]


def ini_page(version, _, weftd):
    out = header("weft.ini", 5, version, "configuration of weft")
    out += [".SH DESCRIPTION",
            "A file with headings [section] and lines name = value, read by",
            ".BR weftd (8)", "and by every process that uses the library.",
            "Lines that begin with a semicolon are comments; a line has at most 199 bytes.",
            "An unknown name, an invalid value and a second line for one option are errors, reported with file and line.",
            ".PP", "Sources of a value, later ones override: the default, the file that WEFT_CONFIG names,",
            "the variable of the option, the command line.", ".PP",
            ".B weftd \\-\\-check\\-config", ".I FILE", "checks a file and prints the values that are not the default.",
            ".B weftd \\-\\-example\\-config", "prints a file of all options."]
    section = None
    for match in CONFIG_OPTION.finditer(help_text.run([weftd, "--help-options"])):
        if match["section"] != section:
            section = match["section"]
            out += [f'.SH "SECTION [{section}]"']
        default = f"The default is {match['default']}." if match["default"] else "Empty by default."
        out += [".TP", f".B {match['name']}", escape(match["help"]), escape(f"Takes {match['takes']}."), escape(default),
                escape(f"Variable: {match['variable']}.")]
    return out + [".SH SEE ALSO", ".BR weft (1),", ".BR weftd (8)"]


PAGES = {"weft.1": weft_page, "weftd.8": weftd_page, "weft.ini.5": ini_page}


def main(page, version, weft, weftd):
    print("\n".join(PAGES[page](version, weft, weftd)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
