#!/usr/bin/python3
"""check_code.py - the code blocks of weft.h, README.md and docs/elastic.md compile as C11, C++17 and C++20, and run.

usage: check_code.py ROOT [WEFT LIBRARY_DIR]     with WEFT each block also runs, in a job of two workers

A block is the text between @code and @endcode in the header, and each ```c block of a document. A block with the
function train() is compiled as it is. Any other block is the body of main(), with the declarations of DECLARE if
it does not call weft_init. A compiler that is not installed is left out."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

COMPILERS = (("gcc", "c", "c11"), ("g++", "c++", "c++17"), ("g++", "c++", "c++20"))
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-comment"]
INCLUDES = "#include <stdio.h>\n#include <stdlib.h>\n#include <signal.h>\n#include <weft/weft.h>\n"
BACKWARD = """static void backward(const float *weights, float *grad, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) grad[i] = weights[i] - 1.0f;
}
"""
# Declarations of a fragment that has none: that of weft_call_start.
DECLARE = """    static float grad[4096];
    struct weft_session *session = NULL;
    struct weft_request request = {{0}};
    enum weft_status status = WEFT_OK;
    if (weft_init(NULL, &session) < 0) return 1;
"""
FINISH = """    if (status >= 0) status = weft_wait(&request, 0);
    weft_finalize(session);
"""
# The elastic loop: rank 1 of the first membership ends itself in step 3, so rank 0 runs on alone.
ELASTIC = """
void gradient(struct weft_session *session, const float *weights, float *grad)
{
    static int calls = 0;
    if (++calls == 3 && weft_ranks(session) == 2 && weft_rank(session) == 1) raise(SIGKILL);
    for (int i = 0; i < 4096; i++) grad[i] = weights[i] - 1.0f;
}

int main(void)
{
    static float weights[4096], grad[4096];
    struct weft_session *session = NULL;
    struct weft_tensor *tensor = NULL;
    struct weft_tensor_options options;
    if (weft_init(NULL, &session) < 0) return 1;
    weft_tensor_options_init(&options);
    options.name = "w";
    options.dim_count = 1;
    options.dims[0] = 4096;
    options.mode = WEFT_MODE_ALL_REDUCE;
    options.optimizer = "sgd:momentum=0.9";
    enum weft_status status = weft_declare(session, &options, &tensor);
    if (status >= 0) status = train(session, tensor, weights, grad, 20);
    if (status < 0) fprintf(stderr, "%s\\n", weft_error_text(session));
    int good = status == WEFT_OK && weft_ranks(session) == 1 && weft_step_next(session) == 21;
    if (!(weights[7] > 0.5f)) good = 0;
    printf("elastic loop: %s\\n", good ? "right" : "wrong");
    weft_finalize(session);
    return good ? 0 : 1;
}
"""


def blocks(path):
    """The code blocks of a file, without their margin."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if path.endswith(".h"):
        found = re.findall(r"^ \* @code\n(.*?)^ \* @endcode", text, flags=re.S | re.M)
        return [re.sub(r"^ \* ?", "", block, flags=re.M) for block in found]
    return re.findall(r"^```c\n(.*?)^```", text, flags=re.S | re.M)


def program(block):
    """A whole program around a block."""
    includes = "".join(re.findall(r"^#include[^\n]*\n", block, flags=re.M))
    body = re.sub(r"^#include[^\n]*\n", "", block, flags=re.M)
    if re.search(r"^enum weft_status train\(", body, flags=re.M):
        return INCLUDES + includes + body + ELASTIC
    if "weft_init(" in body:
        body += "    if (!(weights[7] > 0.5f)) return 1;\n"
    else:
        body = DECLARE + body + FINISH
    backward = BACKWARD if "backward(" in body else ""
    return INCLUDES + includes + backward + "int main(void)\n{\n" + body + "    return status < 0 ? 1 : 0;\n}\n"


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}exit status {done.returncode}")
    return done


def main(root, weft=None, library=None):
    paths = [os.path.join(root, name) for name in ("client/include/weft/weft.h", "README.md", "docs/elastic.md")]
    headers = ["-I" + os.path.join(root, name) for name in ("client/include", "base/include")]
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            found = blocks(path)
            if not found:
                sys.exit(f"{path} has no code block")
            for index, block in enumerate(found):
                source, binary = os.path.join(folder, f"{count}.txt"), os.path.join(folder, f"{count}.out")
                with open(source, "w", encoding="utf-8") as file:
                    file.write(program(block))
                # The macros WEFT_CALL and WEFT_STEP are C: as weft.h states.
                compilers = [each for each in COMPILERS if shutil.which(each[0])]
                if "WEFT_CALL(" in block:
                    compilers = compilers[:1]
                for compiler, language, standard in compilers:
                    command = [compiler, "-x", language, "-std=" + standard, *WARNINGS, *headers, source]
                    link = ["-fsyntax-only"]
                    if library:
                        link = ["-x", "none", "-o", binary, "-L" + library, "-Wl,-rpath," + library, "-lweft"]
                    run(command + link)
                    print(f"{os.path.relpath(path, root)}, block {index + 1}: compiles as {standard}")
                    if weft:
                        elastic = ["--min-workers", "1"] if "train(" in block else []
                        logs = os.path.join(folder, "logs")
                        run([weft, "run", "-n", "2", *elastic, "--log-dir", logs, "--", binary])
                        print(f"{os.path.relpath(path, root)}, block {index + 1}: runs")
                count += 1
    if count < 4:
        sys.exit(f"{count} code blocks found, at least 4 expected")


if __name__ == "__main__":
    main(*sys.argv[1:])
