#!/usr/bin/python3
"""test_tidy.py - tidy.py reports each breach: one small bad tree per rule, and a good one."""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tidy  # noqa: E402

OPENING = "/* why */\n"
COUNTED_WORD = "nobody"  # of comment_words.GROUPS; input of the counting
GOOD = {
    "base/base.h": OPENING + '#include "base/list.h"\n',
    "base/list.h": OPENING,
    "base/inner.h": OPENING,
    "base/list.c": OPENING + '#include "base/inner.h"\n#include <stdio.h>\nint f(void) { return env->free(x); }\n',
    "base/meson.build": "files('list.c')\n",
    "proto/proto.h": OPENING,
    "proto/README.md": "| file | content |\n|---|---|\n| `proto.h` | see [base](../base/list.c) |\n",
    "collective/core/group.h": OPENING,
    "collective/plan/ring.h": OPENING + '#include "base/base.h"\n',
    "collective/onehost/segment.h": OPENING + '#include "collective/core/group.h"\n#include "collective/plan/ring.h"\n',
    "transport/ucx/ucx.c": OPENING + '#include <ucp/api/ucp.h>\n#include "base/base.h"\n',
    "transport/meson.build": "files('ucx/ucx.c')\n",
    "examples/one.c": OPENING + "#include <weft/weft.h>\n#include <cblas.h>\n",
    "examples/meson.build": "executable('one', 'one.c')\n",
    "tests/base/test_list.c": '#include "base/inner.h"\n#include <cmocka.h>\n',
    "tests/base/meson.build": "foreach subject : ['list']\n",
}


class TidyTest(unittest.TestCase):
    def breaches(self, changes):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**GOOD, **changes}.items():
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return tidy.Tidy(root, None).check()

    def expect(self, path, text, words):
        found = self.breaches({path: text})
        self.assertTrue(any(line.startswith(path + ":") and words in line for line in found), (words, found))

    def expect_tree(self, changes, words):
        found = self.breaches(changes)
        self.assertTrue(any(words in line for line in found), (words, found))

    def add(self, path, line, words):
        self.expect(path, GOOD.get(path, OPENING) + line + "\n", words)

    def test_a_good_tree_passes(self):
        self.assertEqual(self.breaches({}), [])

    def test_arrows(self):
        self.add("base/list.c", '#include "proto/proto.h"', "base may not include proto")
        self.add("transport/ucx/ucx.c", '#include "proto/proto.h"', "transport may not include proto")
        self.add("transport/ucx/ucx.c", "#include <weft/weft.h>", "transport may not include client")
        self.add("transport/ucx/ucx.c", '#include "base/inner.h"', "private to base")
        self.add("examples/one.c", '#include "base/base.h"', "an example includes <weft/weft.h>")
        self.add("base/list.c", '#include "list.h"', "path from the top")

    def test_folder_arrows(self):
        self.add("collective/plan/ring.h", '#include "collective/core/group.h"', "collective/plan may include no other folder")
        self.add("collective/core/group.h", '#include "collective/onehost/segment.h"', "may include plan, tuning")

    def test_layout(self):
        self.add("base/list.h", "/* " + "x" * 120 + " */", "at most 110")
        self.add("proto/README.md", "| `proto.c` | |", "proto.c does not exist")
        self.add("proto/README.md", "[wire](wire.md)", "wire.md does not exist")
        self.expect("HACKING.md", "| `proto/none.c` |\n", "proto/none.c does not exist")
        self.assertEqual(self.breaches({"HACKING.md": "| `proto/NAME.c` |\n"}), [])
        found = self.breaches({f"proto/part{i}.h": OPENING for i in range(26)})
        self.assertTrue(any("proto:1: 27 C files; at most 25" in line for line in found), found)

    def test_fields(self):
        fields = "".join(f"    int f{i}, g{i};\n" for i in range(12))
        self.assertEqual(self.breaches({"base/list.h": OPENING + f"struct s {{\n{fields}    int h;\n}};\n"}), [])
        self.add("base/list.h", f"struct s {{\n{fields}    int h[2], *i;\n}};", "struct s has 26 fields")
        self.add("base/list.h", f"struct s {{\n{fields}    struct {{ int h, i; }};\n}};", "struct s has 26 fields")
        named = OPENING + f"struct s {{\n{fields}    struct {{ int h, i; }} end; /* a; b; */\n}};\n"
        self.assertEqual(self.breaches({"base/list.h": named}), [])

    def test_parameters(self):
        self.assertEqual(self.breaches({"base/list.h": OPENING + "int f(int a, int (*b)(int, int), int c, int d, int e);\n"}), [])
        self.add("base/list.h", "int f(int a, int b, int c,\n      int d, int e, int f);", "function f has 6 parameters")
        self.add("base/list.h", "static inline struct s *f(int a, int b, int c, int d, int e, ...)\n{\n}", "has 6 parameters")

    def test_exceptions_shrink(self):
        longer = OPENING + "int f(int a, int b, int c, int d, int e, int g);\n"
        self.assertEqual(self.breaches({"base/list.h": longer, tidy.EXCEPTIONS: "# why\nfunction f 6\n"}), [])
        self.expect_tree({"base/list.h": longer, tidy.EXCEPTIONS: "function f 7\n"}, "lower or remove the line")
        self.expect_tree({tidy.EXCEPTIONS: "struct s 30\n"}, "lower or remove the line")

    def test_comment_words(self):
        self.expect_tree({"base/list.h": OPENING + "/* nobody is told */\n"}, "nobody|somebody|everybody per 10,000 words")
        self.expect_tree({"tests/base/test_list.c": f"/* {COUNTED_WORD} */\n" + GOOD["tests/base/test_list.c"]}, "tests:1: ")
        self.expect_tree({"proto/README.md": f"{COUNTED_WORD}\n"}, "documents:1: ")
        self.assertEqual(self.breaches({"proto/README.md": f"`{COUNTED_WORD}`\n"}), [])

    def test_third_party(self):
        self.add("base/list.c", "#include <ucp/api/ucp.h>", "belongs in transport/ucx/")
        self.add("base/list.c", "#include <cmocka.h>", "belongs in tests/")
        self.add("base/list.c", "#include <boost/list.hpp>", "no known header")
        found = self.breaches({name: OPENING + "#include <xxhash.h>\n" for name in ("proto/a.c", "server/b.c")})
        self.assertTrue(any("already has its one home" in line for line in found))

    def test_calls(self):
        for call in ("clock_gettime(0, &t);", "x = malloc(3);", "free (x);", "exit(1);", "abort();", 'printf("x");',
                     'fprintf( stderr, "x");', "rand();", "getrandom(&x, 8, 0);", "time(NULL);", "usleep(3);",
                     "signal(SIGPIPE, SIG_IGN);", "strcpy(a, b);"):
            self.add("base/list.c", call, "in a library module")

    def test_calls_in_comments_strings_and_members_are_none(self):
        text = GOOD["base/list.c"] + '/* malloc(3) */ // exit(1)\nf("abort()", ring->free(x), weft_free(x), env.free(x));\n'
        self.assertEqual(self.breaches({"base/list.c": text}), [])

    def test_kinds_of_devices(self):
        self.add("base/list.c", "int k = WEFT_MEMORY_CUDA;", "WEFT_MEMORY_CUDA: one kind of device")
        self.add("transport/ucx/ucx.c", 'const char *s = "no CUDA here";', "CUDA: one kind of device")
        comment = {"base/list.c": GOOD["base/list.c"] + "/* as CUDA does */\n"}
        table = {"base/memory/memory_cuda.c": OPENING + "int k = WEFT_MEMORY_CUDA;\n", "base/meson.build": "files('list.c', 'memory/memory_cuda.c')\n"}
        self.assertEqual(self.breaches({**comment, **table}), [])

    def test_devices(self):
        for call in ("cudaMalloc(&p, 8);", "cudaDeviceSynchronize();", "cudaStreamSynchronize (stream);", "cudaMemcpy(a, b, 8, kind);"):
            self.add("kernels/cuda/sum.cu", call, "in a device kernel's file")
        text = OPENING + "cudaMemcpyAsync(a, b, 8, kind, stream); cudaMemsetAsync(a, 0, 8, stream); // cudaFree(a)\n"
        self.assertEqual(self.breaches({"kernels/cuda/sum.cu": text}), [])

    def test_meson(self):
        self.add("base/stray.c", "", "belongs to no target")
        self.add("tests/base/test_stray.c", "", "belongs to no target")

    def test_options(self):
        self.expect("base/config/options.c", OPENING + '    TEXT("job.unread", "", "Help."),\n', "no module reads the option job.unread")
        self.add("server/x.c", 'f(weft_config_u64(config, "job.none"));', "job.none is not in base/config/options.c")

    def test_text(self):
        self.expect("base/list.h", "int x;\n", "opens with a comment")
        self.add("base/list.h", "/* see /ro" + "ot/notes/x */", "path of one machine")
        self.add("base/list.h", "/* TO" + "DO: later */", "note to self")
        self.add("base/list.h", "\tint x;", "a tab")
        self.add("base/list.h", "int x; ", "white space")


if __name__ == "__main__":
    unittest.main()
