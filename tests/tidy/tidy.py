#!/usr/bin/python3
"""tidy.py - checks the arrows between modules and the layout of the tree. The quick suite runs it; by hand:

    tests/tidy/tidy.py [--build BUILD-DIRECTORY] [ROOT]

It reads the tree as text (no compiler) and prints one line per breach, `file:line: what and what instead`:

  arrows        a module includes only modules below it, and of them only their public headers;
                inside a module a folder includes only the folders below it
  third party   each foreign header has one home; an unknown header needs a home in the table below
  calls         library modules take clock, random, memory and log from struct weft_env, and never end the process
  devices       kernels for a device neither allocate nor copy to the host nor wait: they queue on the caller's stream
  meson         every .c file belongs to some target
  options       every option of the option table has a reader, and every option read is in the table
  layout        at most 25 files in a folder; no C line above 110 columns; READMEs and HACKING.md name existing files
  sizes         at most 25 fields in a struct and 5 parameters in a prototype, except those of exceptions.txt
  text          no machine's paths, no notes to self, no tabs; a file of the library opens with a comment
  words         comments name the thing that acts: words without one stay below their limit per 10,000 words

It also prints the frequency of these words and of some terms of the field: one row per module, their total, the
comments of the tests, and the documents.
"""

import json
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "dev"))
import comment_words  # noqa: E402
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import limits  # noqa: E402

ARROWS = {  # module: the modules it may include
    "base": set(),
    "kernels": {"base"},
    "compress": {"base", "kernels"},
    "transport": {"base"},
    "proto": {"base"},
    "collective": {"base", "kernels", "compress", "transport"},
    "coordinator": {"base", "kernels", "compress", "proto"},
    "snapshot": {"base", "kernels", "proto"},
    "server": {"base", "kernels", "compress", "transport", "proto", "collective", "coordinator", "snapshot"},
    "client": {"base", "kernels", "compress", "transport", "proto", "collective", "coordinator"},
    "nccl": {"base", "transport", "collective", "client"},
    "tools": {"base", "kernels", "compress", "transport", "proto", "collective", "coordinator", "snapshot", "server",
              "client"},
    "examples": {"client"},
}
FOLDERS = {  # folder: the folders of its module that it may include besides the module's own top level
    "collective/plan": set(),
    "collective/tuning": {"plan"},
    "collective/core": {"plan", "tuning"},
    "collective/onehost": {"plan", "tuning", "core"},
    "collective/compressed": {"plan", "tuning", "core"},
    "client/session": set(),
    "client/engine": {"session"},
    "client/call": {"session", "engine"},
    "client/comm": {"session", "engine", "call"},
    "client/nccl": {"session", "engine", "call", "comm"},
    "client/tensor": {"session", "engine", "call", "comm"},
    "client/elastic": {"session", "engine", "call", "comm", "tensor"},
    "client/outer": {"session"},
    "nccl/abi": set(),
    "nccl/net": {"abi"},
    "nccl/collnet": {"abi", "net"},
    "nccl/profiler": {"abi", "net"},
    "server/shard": set(),
    "server/daemon": {"shard"},
}
LIBRARY = ["base", "kernels", "compress", "transport", "proto", "collective", "nccl", "coordinator", "snapshot", "server",
           "client"]
PUBLIC = {"weft/status.h": "base", "weft/types.h": "base", "weft/weft.h": "client"}

# Foreign header: where it may be included (path prefixes), and in how many files of the library at most.
THIRD_PARTY = [
    (r"(ucp|uct|ucs)/", ["transport/ucx/"], None),
    (r"(infiniband|rdma)/", ["transport/verbs/"], None),
    (r"(protobuf-c/|control\.pb-c\.h)", ["proto/"], None),
    (r"event2/", ["base/"], None),
    (r"ini\.h", ["base/"], None),
    (r"openssl/", ["base/"], 1),
    (r"(link|elf|gnu/lib-names|gnu/libc-version)\.h$", ["base/"], 1),  # the dynamic loader
    (r"xxhash\.h", ["proto/", "server/", "compress/"], 1),
    (r"zstd\.h", ["snapshot/"], 1),
    (r"jansson\.h", ["coordinator/", "snapshot/", "server/", "tools/"], None),
    (r"mpi\.h", ["tools/bench/peers/"], 1),
    (r"(immintrin|cpuid)\.h", ["kernels/"], None),
    (r"emmintrin\.h", ["transport/", "tools/bench/kernels/"], None),  # copies past the caches
    (r"cuda_\w+\.h$", ["kernels/cuda/"], None),
    (r"nvtx3/", ["base/"], 1),
    (r"(cblas|zlib)\.h", ["examples/"], None),
    (r"(cmocka|nccl)\.h", [], None),
]
SYSTEM = re.compile(r"^((sys|netinet|arpa|linux|net)/\w+|aio|alloca|assert|complex|ctype|dirent|dlfcn|endian|errno|execinfo"
                    r"|fcntl|fenv|float|ftw|getopt|glob|grp|ifaddrs|inttypes|iso646|langinfo|libgen|limits|locale|malloc|math"
                    r"|netdb|poll|pthread|pwd|sched|semaphore|setjmp|signal|spawn|stdalign|stdarg|stdatomic|stdbool|stddef"
                    r"|stdint|stdio|stdlib|stdnoreturn|string|strings|syslog|termios|tgmath|threads|time|ucontext|uchar|unistd"
                    r"|wchar|wctype)\.h$")

CALLS = [  # in library modules: name of the rule, calls, what instead
    ("clock", r"clock_gettime|gettimeofday|time|clock|ftime", "use weft_now_ns(env)"),
    ("random", r"rand|srand|rand_r|random|srandom|drand48|lrand48|getrandom|getentropy", "use weft_random_u64(env)"),
    ("memory", r"malloc|calloc|realloc|reallocarray|free|aligned_alloc|posix_memalign|strdup|strndup|asprintf|vasprintf",
     "use weft_alloc_... and weft_free_bytes"),
    ("output", r"printf|vprintf|puts|putchar|perror",
     "use weft_log, or print to a stream the caller gave"),
    ("exit", r"exit|_exit|_Exit|quick_exit|abort|err|errx", "return a status"),
    ("sleep", r"sleep|usleep|nanosleep|clock_nanosleep", "use a timer of the loop"),
    ("signal", r"signal|sigaction", "a library has no signal handlers"),
    ("unbounded", r"sprintf|vsprintf|strcpy|strcat|gets|strtok", "use the bounded form"),
]
ALLOWED_CALLS = {  # file: rules it is the home of
    "base/os/env_system.c": {"clock", "random", "memory", "output"},
    "base/weft_assert.c": {"exit", "output"},
    "client/session/flight_signal.c": {"signal"},  # only where the user asks by an option
    "coordinator/coordinator_status.c": {"memory"},  # frees what jansson made
    "server/daemon/weftd.c": {"output", "signal"},  # a program: its own words on its own terminal, SIGTERM
}

COLUMNS_MAX = 110
WORDS_MAX = {  # group of comment_words.GROUPS: occurrences per 10,000 words of the library's and tools' comments
    "who": 1.0, "nobody": 0.5, "say": 0.5, "tell": 0.5, "come": 1.5, "he": 0.5, "alike": 0.5, "private": 2.0,
}
# The comments of the tests and the documents have one limit for each group, and none for private words.
WORDS_MAX_OUTSIDE = {group: 2.0 for group in WORDS_MAX if group != "private"}
FOLDER_FILES_MAX = 25
RELEASED = "tests/client/abi/weft-"  # headers as they were released; not edited
# Sizes of structs and prototypes. Each exception has its present number, which may only be lowered.
FIELDS_MAX = 25
PARAMETERS_MAX = 5
EXCEPTIONS = "tests/tidy/exceptions.txt"
# Interfaces of other projects, and the public one, which is frozen; kernels take their arrays and scalars one by one.
FREE_SIZES = ("client/include/", "nccl/", "tests/")
FREE_PARAMETERS = FREE_SIZES + ("kernels/",)
LARGE_FOLDERS = set()  # folders that hold more files; the reason is in their README

WAITING_CALLS = re.compile(r"\bcuda(Malloc|Free|Host|Memcpy(?!\w*Async\b)|\w*Synchronize)\w*\s*\(")
# A kind of device is named by its memory table (base/memory/memory_kind.c), its kernels and its collective library
# (client/nccl) alone.
BLIND_TO_DEVICES = ("base/", "compress/", "transport/", "proto/", "collective/", "coordinator/", "server/", "client/")
DEVICE_TABLES = ("base/memory/memory_", "base/include/weft/types.h", "client/include/", "client/nccl/")
FOREIGN_DEVICE_NAMES = {  # names of other interfaces
    "base/config/config_names.c": ("WEFT_CUDA_KERNELS", "WEFT_CUDA_RUNTIME"),
    "transport/ucx/ucx_register.c": ("WEFT_MEMORY_CUDA", "UCS_MEMORY_TYPE_CUDA"),
}

SOURCE = (".c", ".h")
TEXT = SOURCE + (".py", ".sh", ".md", ".build", ".proto", ".txt", ".ini")
TOP = list(ARROWS) + ["tests", "docs", "deploy", ".ci"]
SKIPPED_FOLDERS = {"__pycache__", "out"}
MACHINE_PATH = re.compile(r"(?<![\w.])/(wor" + r"k|roo" + r"t|hom" + r"e/[a-z]\w*)/")
NOTE = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b(?!\w)")


def files(root):
    """Paths of all text files below root, relative, sorted."""
    found = [name for name in os.listdir(root) if os.path.isfile(os.path.join(root, name)) and name.endswith(TEXT)]
    for top in TOP:
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith("build")]
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), root)
                if name.endswith(TEXT) or ("." not in name and is_script(os.path.join(folder, name))):
                    found.append(path)
    return sorted(found)


def is_script(path):
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def without_comments(text, keep_strings):
    """C text with comments (and, unless kept, the insides of strings) blanked; lines stay where they are."""
    def blank(match):
        token = match.group(0)
        if token[0] in "\"'":
            return token if keep_strings else token[0] * 2
        return re.sub(r"[^\n]", " ", token)
    return re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", blank, text, flags=re.S)


def includes(text):
    """(line number, header, is it <system>) of each #include."""
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if match:
            yield number, match.group(2), match.group(1) == "<"


def module_of(path):
    return path.split("/")[0]


def folder_of(path):
    """module/folder of a file that lies in a folder of its module, else None."""
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else None


def word_rows(root):
    """Rows of comment_words: each module, their total, the tests, the documents."""
    rows = comment_words.count_tree(root, tests=True)
    if "tests" in rows:
        rows["total"] = comment_words.difference(rows["total"], rows["tests"])
    rows["documents"] = comment_words.count_documents(root)
    return rows


class Tidy:
    def __init__(self, root, build):
        self.root, self.build, self.breaches = root, build, []
        self.words = word_rows(root)
        self.paths = files(root)
        self.texts = {path: read(root, path) for path in self.paths}
        self.code = {path: without_comments(self.texts[path], True) for path in self.paths if path.endswith(SOURCE)}
        self.public = {module: self.public_headers(module) for module in ARROWS}

    def breach(self, path, line, text):
        self.breaches.append(f"{path}:{line}: {text}")

    def public_headers(self, module):
        """<module>/<module>.h and the headers of its module that it includes: what other modules may include."""
        public, pending = set(), [f"{module}/{module}.h"]
        while pending:
            path = pending.pop()
            if path in public or path not in self.code:
                continue
            public.add(path)
            pending += [header for _, header, _ in includes(self.code[path]) if header.startswith(module + "/")]
        return public

    # --- includes ---

    def check_includes(self):
        users = {}  # third-party pattern: library files that use it
        for path, code in self.code.items():
            for line, header, is_system in includes(code):
                if header in PUBLIC:
                    self.check_arrow(path, line, PUBLIC[header], None)
                elif module_of(header) in ARROWS and "/" in header:
                    self.check_arrow(path, line, module_of(header), header)
                else:
                    self.check_foreign(path, line, header, is_system, users)
        for (pattern, limit), paths in users.items():
            if limit and len(paths) > limit:
                self.breach(sorted(paths)[-1], 1, f"<{pattern}> already has its one home, in {sorted(paths)[0]}")

    def check_arrow(self, path, line, module, header):
        mine = module_of(path)
        if mine == module and header:
            self.check_folder_arrow(path, line, header)
        if mine in (module, "tests"):
            return
        if mine == "examples" and header:
            self.breach(path, line, f"an example includes <weft/weft.h> of weft and nothing else, not {header}")
        elif mine == "examples":
            return
        elif module not in ARROWS.get(mine, set()):
            self.breach(path, line, f"{mine} may not include {module} (the arrows are in HACKING.md)")
        elif header and header not in self.public[module]:
            self.breach(path, line, f"{header} is private to {module}; include its public header, {module}/{module}.h")

    def check_folder_arrow(self, path, line, header):
        mine, other = folder_of(path), folder_of(header)
        if mine not in FOLDERS or mine == other or other is None or header in self.public[module_of(path)]:
            return
        if other.split("/")[1] not in FOLDERS[mine]:
            below = ", ".join(sorted(FOLDERS[mine])) or "no other folder"
            self.breach(path, line, f"{mine} may include {below}, not {other}; call it by an ops table or a callback")

    def check_foreign(self, path, line, header, is_system, users):
        for pattern, homes, limit in THIRD_PARTY:
            if not re.match(pattern, header):
                continue
            if module_of(path) == "tests":
                return
            if not any(path.startswith(home) for home in homes):
                self.breach(path, line, f"<{header}> belongs in {' or '.join(homes) or 'tests/'} only")
            users.setdefault((pattern, limit), set()).add(path)
            return
        if is_system and not SYSTEM.match(header):
            self.breach(path, line, f"<{header}> is no known header; give it its one home in tests/tidy/tidy.py")
        if not is_system and module_of(path) != "tests" and module_of(path) != "examples" and module_of(path) != "tools":
            self.breach(path, line, f'"{header}": include by the path from the top, "module/file.h"')

    # --- calls ---

    def check_calls(self):
        for path in self.code:
            if module_of(path) not in LIBRARY:
                continue
            text = without_comments(self.texts[path], False)
            for rule, calls, instead in CALLS:
                if rule in ALLOWED_CALLS.get(path, set()):
                    continue
                pattern = rf"(?<![\w.>])({calls})\s*\("
                if rule == "output":
                    pattern += r"|\b(fprintf|vfprintf|fputs|fputc|fwrite)\s*\([^;]*\b(?:stderr|stdout)\b"
                for match in re.finditer(pattern, text):
                    line = text.count("\n", 0, match.start()) + 1
                    self.breach(path, line, f"{match.group(match.lastindex)}() in a library module; {instead}")

    # --- devices ---

    def check_devices(self):
        folder = os.path.join(self.root, "kernels", "cuda")
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            if not name.endswith((".cu", ".h")):
                continue
            path = "kernels/cuda/" + name
            text = without_comments(read(self.root, path), False)
            for match in WAITING_CALLS.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                self.breach(path, line, f"{match.group(0)}) in a device kernel's file; queue on the caller's stream, with the caller's memory")

        for path in self.code:
            if not path.startswith(BLIND_TO_DEVICES) or path.startswith(DEVICE_TABLES):
                continue
            text = self.code[path]
            for match in re.finditer(r"\w*cuda\w*", text, flags=re.I):
                if match.group(0) not in FOREIGN_DEVICE_NAMES.get(path, ()):
                    line = text.count("\n", 0, match.start()) + 1
                    self.breach(path, line, f"{match.group(0)}: one kind of device; call weft_memory_ops or weft_memory_is_device")

    # --- meson ---

    def check_meson(self):
        built = set()
        if self.build:
            with open(os.path.join(self.build, "meson-info", "intro-targets.json"), encoding="utf-8") as file:
                for target in json.load(file):
                    for group in target["target_sources"]:
                        built.update(os.path.realpath(source) for source in group.get("sources", []))
        named = {}  # folder: quoted words of its meson.build
        for path in self.paths:
            if os.path.basename(path) == "meson.build":
                named[os.path.dirname(path)] = set(re.findall(r"'([^'\n]*)'", self.texts[path]))
        for path in self.code:
            if not path.endswith(".c") or os.path.realpath(os.path.join(self.root, path)) in built:
                continue
            if not self.is_named(path, named):
                self.breach(path, 1, "belongs to no target; name it in a meson.build")

    @staticmethod
    def is_named(path, named):
        """In the meson.build of its folder or of one above, as it is or by the word a loop makes test_WORD.c of."""
        folder, stem = os.path.dirname(path), os.path.splitext(os.path.basename(path))[0]
        while True:
            relative = os.path.relpath(path, folder or ".")
            if any(word == relative or stem == word or stem.endswith("_" + word) or stem == word + "_test"
                   for word in named.get(folder, set())):
                return True
            if not folder:
                return False
            folder = os.path.dirname(folder)

    # --- options ---

    def check_options(self):
        table = "base/config/options.c"
        names = re.findall(r'^\s*[A-Z]+\("(\w+\.\w+)"', self.texts.get(table, ""), flags=re.M)
        readers = "\n".join(text for path, text in self.texts.items()
                            if module_of(path) in ARROWS and module_of(path) != "base" and not path.endswith(".md"))
        config = self.texts.get("base/config/config.c", "")
        for name in names:
            if f'"{name}"' not in readers and f'"{name}"' not in config:
                self.breach(table, self.line_of(table, f'"{name}"'), f"no module reads the option {name}; delete it")
        for path, code in self.code.items():
            for match in re.finditer(r'\bweft_config_(?:text|u64|bool|where)\([^;"]*"(\w+\.\w+)"', code):
                if module_of(path) != "tests" and match.group(1) not in names:
                    self.breach(path, code.count("\n", 0, match.start()) + 1, f"{match.group(1)} is not in {table}")

    def line_of(self, path, word):
        return self.texts[path].count("\n", 0, self.texts[path].find(word)) + 1

    # --- layout ---

    def check_layout(self):
        folders = {}
        for path in self.paths:
            if path.endswith(SOURCE) and (module_of(path) in ARROWS or module_of(path) == "tests"):
                folders.setdefault(os.path.dirname(path), []).append(path)
        for folder, paths in sorted(folders.items()):
            if len(paths) > FOLDER_FILES_MAX and folder not in LARGE_FOLDERS:
                self.breach(folder, 1, f"{len(paths)} C files; at most {FOLDER_FILES_MAX} in a folder")
        for path in self.paths:
            if path.endswith(SOURCE) and not path.startswith(RELEASED):
                for number, line in enumerate(self.texts[path].split("\n"), 1):
                    if len(line) > COLUMNS_MAX:
                        self.breach(path, number, f"{len(line)} columns; at most {COLUMNS_MAX}")
            if os.path.basename(path) == "README.md" or path == "HACKING.md":
                self.check_readme(path)

    def check_sizes(self):
        """Counts above the limit are those of the list of exceptions; a smaller count, or none, lowers the list."""
        exceptions = limits.read_exceptions(self.texts.get(EXCEPTIONS, ""))
        found = {}
        for path in self.code:
            text = without_comments(self.texts[path], False)
            if not path.startswith(FREE_SIZES):
                rows = [("struct", *row, FIELDS_MAX) for row in limits.structs(text)]
                if path.endswith(".h") and not path.startswith(FREE_PARAMETERS):
                    rows += [("function", *row, PARAMETERS_MAX) for row in limits.prototypes(text)]
                for kind, at, name, count, limit in rows:
                    if count > limit:
                        found[(kind, name)] = max(count, found.get((kind, name), 0))
                        self.check_size(path, text.count("\n", 0, at) + 1, kind, name, count, limit, exceptions)
        for (kind, name), allowed in exceptions.items():
            if found.get((kind, name), 0) < allowed:
                self.breach(EXCEPTIONS, self.line_of(EXCEPTIONS, f"{kind} {name} "),
                            f"{kind} {name} has {found.get((kind, name), 'no excess any more')}; lower or remove the line")

    def check_size(self, path, line, kind, name, count, limit, exceptions):
        allowed = exceptions.get((kind, name), limit)
        if count > allowed:
            what = "fields; group them into sub-structs" if kind == "struct" else "parameters; pass a struct"
            self.breach(path, line, f"{kind} {name} has {count} {what} (at most {allowed})")

    def check_readme(self, path):
        """A name in backquotes with an ending, and the target of a link, exist below the README's folder or from the top."""
        folder = os.path.dirname(path)
        for match in re.finditer(r"`([\w./-]+\.(?:c|h|cu|py|md|proto|sh))`|\]\(([\w./-]+)\)", self.texts[path]):
            name = match.group(1) or match.group(2)
            if "NAME" in name:  # of a file to be added
                continue
            places = (os.path.join(self.root, folder, name), os.path.join(self.root, name))
            below = any(each.startswith(folder + "/" if folder else "") and each.endswith("/" + name) for each in self.paths)
            if not below and not any(os.path.exists(place) for place in places):
                line = self.texts[path].count("\n", 0, match.start()) + 1
                self.breach(path, line, f"{name} does not exist")

    # --- text ---

    def check_text(self):
        for path, text in self.texts.items():
            if path.endswith(SOURCE) and module_of(path) in ARROWS and not text.startswith("/*"):
                self.breach(path, 1, "a file opens with a comment: why it exists, its data flow, its invariants")
            for number, line in enumerate(text.split("\n"), 1):
                self.check_line(path, number, line)

    def check_line(self, path, number, line):
        if MACHINE_PATH.search(line):
            self.breach(path, number, "names a path of one machine")
        if NOTE.search(line) and path.endswith(TEXT[:4]):
            self.breach(path, number, "a note to self; do it or leave it out")
        if not path.endswith(SOURCE + (".py",)):
            return
        if "\t" in line:
            self.breach(path, number, "a tab; indent by four spaces")
        if line != line.rstrip():
            self.breach(path, number, "white space at the end of the line")

    # --- words ---

    def check_words(self):
        """The limits hold for the total without tests/, for tests/ and for the documents; they may only be lowered."""
        for name, row in self.words.items():
            limits = {"total": WORDS_MAX, "tests": WORDS_MAX_OUTSIDE, "documents": WORDS_MAX_OUTSIDE}.get(name, {})
            for group, limit in limits.items():
                found = row["per_10000"][group]
                if found > limit:
                    place = "comments" if name == "total" else name
                    self.breach(place, 1, f"{found} of {comment_words.GROUPS[group]} per 10,000 words, at most {limit}; "
                                f"tools/dev/comment_words.py --tests --list '{group}' prints the places")

    def check(self):
        self.check_includes()
        self.check_calls()
        self.check_devices()
        self.check_meson()
        self.check_options()
        self.check_layout()
        self.check_sizes()
        self.check_text()
        self.check_words()
        return self.breaches


def main(arguments):
    build = None
    if len(arguments) >= 2 and arguments[0] == "--build":
        build, arguments = arguments[1], arguments[2:]
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print(__doc__)
        return 2
    root = arguments[0] if arguments else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    tidy = Tidy(os.path.abspath(root), build)
    breaches = tidy.check()
    comment_words.print_table(tidy.words)
    for line in breaches:
        print(line)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
