#!/usr/bin/python3
"""Every function of weft.h is called by test_arguments.c: a new one gets its wrong arguments there."""
import re
import sys

header, test = (open(path, encoding="utf-8").read() for path in sys.argv[1:3])
header = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
declared = set(re.findall(r"WEFT_API[^;{]*?\b(weft_\w+)\(", header))
missing = sorted(name for name in declared if not re.search(r"\b%s\(" % name, test))
if len(declared) < 60 or missing:
    sys.exit("weft.h has %d functions; test_arguments.c does not call: %s" % (len(declared), ", ".join(missing)))
