"""test_library.py - what NCCL's loader sees: exported symbols, dependencies, nodelete.

    test_library.py LIBRARY
"""

import subprocess
import sys

EXPORTED = {f"nccl{kind}Plugin_v{version}" for kind in ("Net", "CollNet") for version in (8, 10, 11, 12)}
EXPORTED |= {"ncclProfiler_v4", "ncclProfiler_v5"}
FOREIGN = ("libucp", "libuct", "libibverbs", "librdmacm", "libcudart", "libcuda", "libnccl")  # loaded when needed


def lines(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def main():
    library, wrong = sys.argv[1], []
    exported = {line.split()[-1].split("@")[0] for line in lines("nm", "-D", "--defined-only", library)}
    if exported != EXPORTED:
        wrong.append(f"exports {sorted(exported)}, not {sorted(EXPORTED)}")
    dynamic = lines("readelf", "-dW", library)
    if not any("NODELETE" in line for line in dynamic):
        wrong.append("is not marked nodelete: dlclose would unmap code that is in use")
    needed = [line.split("[")[1].rstrip("]") for line in dynamic if "(NEEDED)" in line]
    wrong += [f"needs {name}" for name in needed if name.startswith(FOREIGN)]
    for text in wrong:
        print(f"{library} {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
