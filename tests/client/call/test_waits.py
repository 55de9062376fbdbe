"""test_waits.py - each event and wait of weft on a device is needed: without it a test fails.

    test_waits.py SOURCE-ROOT [--only TEXT] PROGRAM[,ARGUMENT...]...

The programs run over the fake CUDA runtime, which lists the places of weft that record an event, make a stream wait,
or poll an event (fake_cudart.c). Then each place in turn has no effect: a program that used it must fail, by a check,
a signal or the time limit. Takes minutes, so it is run by hand, with the programs of docs/gpu.md. Places that can be
removed without a failed program are printed as NOT FOUND: either another place has the same effect, or a test is missing.

Programs of a build with the thread sanitizer find a missing order in each run, whatever the delays are: for it the
runtime orders only what a device orders (device_order.h). Others find it if the bytes are wrong.
"""

import bisect
import collections
import os
import re
import signal
import subprocess
import sys
import tempfile

LIMIT_S = 120
SLOW = {"FAKE_CUDA_COPY_US": "700"}  # a second try: a missing order shows while copies take longer
ENVIRONMENT = {"UCX_MEM_EVENTS": "n", "TSAN_OPTIONS": "halt_on_error=1"}  # of the thread sanitizer
FOLDERS = ("base/", "client/", "compress/", "collective/", "server/")


def run(command, **variables):
    """False: the program failed. Its processes are its own group, which ends with it."""
    with subprocess.Popen(command, env={**os.environ, **ENVIRONMENT, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          start_new_session=True) as process:
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return status == 0


def functions_of(root):
    """Functions of weft, by name: the files that define each."""
    found = {}
    for folder in FOLDERS:
        for path, _, names in os.walk(os.path.join(root, folder)):
            for name in names:
                if name.endswith(".c"):
                    with open(os.path.join(path, name), encoding="utf-8") as text:
                        for function in re.findall(r"^[a-z][\w \*]*?\b(\w+)\(", text.read(), re.M):
                            found.setdefault(function, []).append(name)
    return found


def symbols_of(program):
    """(address, name) of the functions of a program, in order."""
    lines = subprocess.run(["nm", program], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return sorted((int(line.split()[0], 16), line.split()[2]) for line in lines if re.match(r"\w+ [tT] ", line))


def is_ordered(program):
    """Returns whether the program is built with the thread sanitizer, which detects a missing order at any speed."""
    return "__tsan_init" in subprocess.run(["nm", program], stdout=subprocess.PIPE, text=True, check=True).stdout


def sites_of(command, functions):
    """Sites of a run in which nothing is removed, by place: 'file function+offset what'."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "sites")
        if not run(command, FAKE_CUDA_SITES=file):
            sys.exit(f"{' '.join(command)} fails although nothing is removed")
        if not is_ordered(command[0]) and not run(command, **SLOW):
            sys.exit(f"{' '.join(command)} fails with slow copies although nothing is removed")
        with open(file, encoding="utf-8") as lines:
            sites = {line.strip() for line in lines}
    symbols, places = symbols_of(command[0]), {}

    def at(offset):
        """(function, offset in it), of the module"""
        address, symbol = symbols[bisect.bisect(symbols, (int(offset, 16), "~")) - 1]
        return symbol.split(".")[0], int(offset, 16) - address

    for site in sites:
        what, place, table = site.split()
        module, offset = place.rsplit("+", 1)
        if module != os.path.basename(command[0]) or at(table)[0] not in functions:  # of the test
            continue
        function, within = at(offset)
        if function in functions:
            places[f"{'/'.join(functions[function])} {function}+{within:#x} {what}"] = site
    return places


def main():
    functions, arguments, only = functions_of(sys.argv[1]), sys.argv[2:], ""
    if arguments[0] == "--only":
        only, arguments = arguments[1], arguments[2:]
    commands = [argument.split(",") for argument in arguments]
    users = collections.defaultdict(list)
    for command in commands:
        for place, site in sites_of(command, functions).items():
            users[place].append((command, site))
    if not users:
        sys.exit("no place was found")
    wrong = 0
    for place in sorted(users):
        if only not in place:
            continue
        tries = [(command, site, slow) for slow in ({}, SLOW) for command, site in users[place]
                 if not slow or not is_ordered(command[0])]
        found = next((command for command, site, slow in tries if not run(command, FAKE_CUDA_DROP_SITE=site, **slow)), None)
        wrong += found is None
        print(f"{'found' if found else 'NOT FOUND':<9} {place}{': ' + os.path.basename(found[0]) if found else ''}", flush=True)
    print(f"{len(users)} places, {wrong} can be removed without a failed test")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
