#!/usr/bin/python3
"""Every function of weft.h is called by test_arguments.c: a new one gets its wrong arguments there. Every struct is in test_sized.c: a new one
is known to weft_struct_bytes."""
import re
import sys

header, test, sized = (open(path, encoding="utf-8").read() for path in sys.argv[1:4])
header = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
declared = set(re.findall(r"WEFT_API[^;{]*?\b(weft_\w+)\(", header))
missing = sorted(name for name in declared if not re.search(r"\b%s\(" % name, test))
if len(declared) < 60 or missing:
    sys.exit("weft.h has %d functions; test_arguments.c does not call: %s" % (len(declared), ", ".join(missing)))
structs = set(re.findall(r"^struct (weft_\w+) \{", header, flags=re.M))
missing = sorted(name for name in structs if "SAME_SIZE(%s)" % name not in sized)
if len(structs) < 9 or missing:
    sys.exit("weft.h has %d structs; test_sized.c does not compare: %s" % (len(structs), ", ".join(missing)))
