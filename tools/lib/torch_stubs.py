"""torch_stubs.py LIBRARY_DIRECTORY - lets a CUDA build of PyTorch load without the CUDA packages.

The libraries of PyTorch need CUDA libraries that the dynamic loader must find, although a run on the CPU
calls none of them. For each of them that does not lie beside PyTorch's own libraries, this program builds one
there with the versions and functions that PyTorch links to. The RPATH of PyTorch's libraries has their own
directory, so the loader prefers these stubs to other CUDA releases of the machine. Each function returns 100,
which is cudaErrorNoDevice, so PyTorch reports that no device is there. It needs gcc and binutils.
"""

import collections
import os
import re
import subprocess
import sys
import tempfile

NO_DEVICE = 100
CUDA_LIBRARY = re.compile(r"lib(cu|nccl|nv)")
CUDA_FUNCTION = re.compile(
    r"(cu[A-Z]|cu(blas|da|dnn|fft|File|pti|rand|solver|sparse)|nccl|nvJit|nvml|nvrtc|nvshmem)"
)


def output(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def needed_sonames(path):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "--dynamic", "--wide", path))


def version_owners(path):
    """{version: soname} of the symbol versions that the library requires."""
    owners, soname = {}, None
    for line in output("readelf", "--version-info", "--wide", path).splitlines():
        soname = next(iter(re.findall(r"File: (\S+)", line)), soname)
        for version in re.findall(r"Name: (\S+)", line) if soname else ():
            owners[version] = soname
    return owners


def undefined_symbols(path):
    """(name, version or None) of each undefined symbol of the library."""
    for line in output("nm", "--dynamic", "--undefined-only", "--with-symbol-versions", path).splitlines():
        name, _, version = line.split()[-1].partition("@")
        yield name, version.lstrip("@") or None


class Stubs:
    """The missing libraries, and the functions of each by version; version None: the function has none."""

    def __init__(self, directory):
        self.directory = directory
        self.functions = {}  # soname: {version or None: set of names}
        own = sorted(name for name in os.listdir(directory) if ".so" in name)
        for name in own:
            self.add_library(os.path.join(directory, name), own)

    def add_library(self, path, own):
        missing = [name for name in needed_sonames(path) if CUDA_LIBRARY.match(name) and name not in own]
        for soname in missing:
            self.functions.setdefault(soname, collections.defaultdict(set))
        owners = version_owners(path)
        for name, version in undefined_symbols(path):
            if version is not None and owners.get(version) in missing:
                self.functions[owners[version]][version].add(name)
            elif version is None and missing and CUDA_FUNCTION.match(name):
                # The loader searches all needed libraries for a name without a version: any may have it.
                self.functions[missing[0]][None].add(name)

    def build(self, soname):
        versions = self.functions[soname]
        with tempfile.TemporaryDirectory() as scratch:
            source, script = os.path.join(scratch, "stub.c"), os.path.join(scratch, "stub.map")
            with open(source, "w", encoding="ascii") as file:
                for name in sorted(set().union(*versions.values())):
                    file.write(f"int {name}(void) {{ return {NO_DEVICE}; }}\n")
            command = ["gcc", *"-w -O1 -fno-builtin -fPIC -shared".split(), f"-Wl,-soname,{soname}", source]
            command += ["-o", os.path.join(self.directory, soname)]
            named = [version for version in versions if version]
            if named:
                with open(script, "w", encoding="ascii") as file:
                    for version in named:
                        file.write(f"{version} {{ global: {'; '.join(sorted(versions[version]))}; }};\n")
                command.append(f"-Wl,--version-script={script}")
            subprocess.run(command, check=True)


def main(directory):
    stubs = Stubs(directory)
    for soname in stubs.functions:
        stubs.build(soname)
    print(f"torch_stubs.py: {len(stubs.functions)} stub libraries in {directory}")


if __name__ == "__main__":
    main(sys.argv[1])
