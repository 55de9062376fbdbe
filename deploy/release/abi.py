#!/usr/bin/python3
"""abi.py - the ABI of libweft as a list of lines, and whether a new list is compatible with an old one.

    abi.py describe INCLUDE-DIRECTORY... >NEW     headers are weft/*.h below these directories
    abi.py compare OLD NEW                        exit status 1 if NEW breaks a program built with OLD

    function NAME RETURN-TYPE (PARAMETER-TYPES)   struct NAME BYTES   member STRUCT.NAME OFFSET BYTES   value NAME NUMBER

The layout is that of the compiler ($CC), read from the debugging information of a file that includes the headers.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile

ENTRY = re.compile(r"^ *<(\d+)><([0-9a-f]+)>: Abbrev Number: \d+ \((DW_TAG_\w+)\)")
# The form of a value and the place of a string are in brackets before it, or absent in other releases of readelf.
ATTRIBUTE = re.compile(r"^ *<[0-9a-f]+> +(DW_AT_\w+) *: (?:\(\w+\) )?(?:\([^)]*offset[^)]*\): )?(.*?)\s*$")


def headers(folders):
    return sorted(path for folder in folders for path in glob.glob(os.path.join(folder, "weft", "*.h")))


def functions(path):
    """Lines of the public functions of a header, without the names of parameters."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", file.read(), flags=re.S)
    for declaration in re.findall(r"^WEFT_API\s+([^;#]+);", text, flags=re.M):
        kind, name, parameters = re.fullmatch(r"(.*?)\s*\b(\w+)\s*\((.*)\)", " ".join(declaration.split())).groups()
        types = [re.sub(r"\b\w+(\[\w*\])?$", r"\1", one.strip()).strip() if one.strip() not in ("void", "...") else one.strip()
                 for one in parameters.split(",")]
        yield f"function {name} {kind} ({', '.join(types)})"


def entries(folders):
    """[(depth, number, tag, {attribute: text})] of the debugging information of all headers."""
    with tempfile.TemporaryDirectory() as directory:
        source, out = os.path.join(directory, "abi.c"), os.path.join(directory, "abi.o")
        with open(source, "w", encoding="utf-8") as file:
            file.writelines(f'#include "{os.path.abspath(path)}"\n' for path in headers(folders))
        include = [word for folder in folders for word in ("-I", folder)]
        subprocess.run([*os.environ.get("CC", "cc").split(), "-std=c11", "-g", "-gdwarf-4", "-O0", "-fno-eliminate-unused-debug-types",
                        *include, "-c", source, "-o", out], check=True)
        text = subprocess.run(["readelf", "--wide", "--debug-dump=info", out], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = []
    for line in text.splitlines():
        if entry := ENTRY.match(line):
            found.append((int(entry[1]), entry[2], entry[3], {}))
        elif (attribute := ATTRIBUTE.match(line)) and found:
            found[-1][3][attribute[1]] = attribute[2]
    return found


def number(text):
    return int(text.split()[0], 0)


class Layout:
    def __init__(self, folders):
        self.all = entries(folders)
        self.index = {place: i for i, (_, place, _, _) in enumerate(self.all)}

    def children(self, i):
        depth = self.all[i][0]
        for j in range(i + 1, len(self.all)):
            if self.all[j][0] <= depth:
                return
            if self.all[j][0] == depth + 1:
                yield j

    def type_bytes(self, attributes):
        i = self.index[re.match(r"<(?:0x)?([0-9a-f]+)>", attributes["DW_AT_type"])[1]]
        _, _, tag, own = self.all[i]
        if "DW_AT_byte_size" in own:
            return number(own["DW_AT_byte_size"])
        bytes_each = self.type_bytes(own)  # a typedef, a qualifier or an array
        if tag != "DW_TAG_array_type":
            return bytes_each
        for j in self.children(i):
            bytes_each *= number(self.all[j][3].get("DW_AT_upper_bound", "-1")) + 1
        return bytes_each

    def lines(self):
        for i, (_, _, tag, attributes) in enumerate(self.all):
            name = attributes.get("DW_AT_name", "")
            if tag == "DW_TAG_structure_type" and name.startswith("weft_") and "DW_AT_byte_size" in attributes:
                yield f"struct {name} {number(attributes['DW_AT_byte_size'])}"
                for j in self.children(i):
                    member = self.all[j][3]
                    if self.all[j][2] == "DW_TAG_member":
                        yield f"member {name}.{member['DW_AT_name']} {number(member['DW_AT_data_member_location'])} {self.type_bytes(member)}"
            elif tag == "DW_TAG_enumerator" and name.startswith("WEFT_"):
                yield f"value {name} {number(attributes['DW_AT_const_value'])}"


def describe(folders):
    lines = [line for path in headers(folders) for line in functions(path)] + list(Layout(folders).lines())
    return sorted(set(lines))


def read(path):
    """{(kind, name): the rest of the line}"""
    with open(path, encoding="utf-8") as file:
        return {tuple(line.split(" ", 2)[:2]): line.rstrip("\n").split(" ", 2)[2] for line in file if line.strip() and line[0] != "#"}


def has_size(old, name):
    """Whether the first member is `size`: such a struct may grow at its end."""
    return ("member", name + ".size") in old and old[("member", name + ".size")].split()[0] == "0"


def breaks(old, new):
    """Sentences about what a program built with `old` no longer finds."""
    for (kind, name), before in old.items():
        after = new.get((kind, name))
        if after is None:
            yield f"{kind} {name} is missing; it was: {before}"
        elif after != before and not (kind == "struct" and has_size(old, name) and int(after) > int(before)):
            yield f"{kind} {name} was: {before}; it is: {after}"


def compare(old_path, new_path):
    old, new = read(old_path), read(new_path)
    found = list(breaks(old, new))
    for sentence in found:
        print(f"abi.py: {sentence}", file=sys.stderr)
    added = sum(key not in old for key in new)
    print(f"{len(old)} lines of the last release, {added} added, {len(found)} incompatible")
    return 1 if found else 0


def main(words):
    if len(words) >= 2 and words[0] == "describe":
        print("\n".join(describe(words[1:])))
        return 0
    if len(words) == 3 and words[0] == "compare":
        return compare(words[1], words[2])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
