"""The C interface of libweft by cffi in ABI mode: no compiler is needed.

The declarations are read from the installed headers, so this module has no list of functions of its own. The
library and the headers are looked for in this order:

    WEFT_LIBRARY, WEFT_INCLUDE   a file libweft.so and a folder that contains weft/weft.h
    beside the package           weft/_lib and weft/_include, as a wheel installs them
    the source tree              client/include and base/include, build/client/libweft.so
    the system                   the loader's search path, /usr/local/include and /usr/include
"""

import os
import re
from pathlib import Path

import cffi

HEADERS = ("weft/status.h", "weft/types.h", "weft/weft.h")
_PACKAGE = Path(__file__).resolve().parent
_ROOT = _PACKAGE.parents[2] if len(_PACKAGE.parents) > 2 else _PACKAGE


def _include_folders():
    given = os.environ.get("WEFT_INCLUDE")
    if given:
        yield [Path(given)]
    yield [_PACKAGE / "_include"]
    yield [_ROOT / "client/include", _ROOT / "base/include"]
    library = os.environ.get("WEFT_LIBRARY")
    if library:
        for parent in list(Path(library).resolve().parents)[:4]:
            yield [parent / "include"]
    yield [Path("/usr/local/include")]
    yield [Path("/usr/include")]


def find_headers():
    """Return the paths of the three headers, all of one installation. Raise ImportError if there are none."""
    for folders in _include_folders():
        found = [next((folder / name for folder in folders if (folder / name).is_file()), None) for name in HEADERS]
        if all(found):
            return found
    raise ImportError(
        "weft: the headers weft/weft.h, status.h and types.h were not found; install weft, or set WEFT_INCLUDE to "
        "the folder that contains weft/weft.h"
    )


def declarations(texts):
    """Return cffi declarations of header `texts`: without comments, directives and attributes."""
    source = "\n".join(texts)
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    source = re.sub(r"//[^\n]*", "", source)
    source = source.replace("\\\n", " ")
    source = re.sub(r"^\s*#.*$", "", source, flags=re.M)
    source = re.sub(r'extern\s+"C"\s*\{', "", source)
    source = re.sub(r"^\}\s*$", "", source, flags=re.M)
    return re.sub(r"\bWEFT_API\b", "", source)


def _libraries():
    given = os.environ.get("WEFT_LIBRARY")
    if given:
        return [given]
    for beside in (_PACKAGE / "_lib/libweft.so.0", _ROOT / "build/client/libweft.so.0"):
        if beside.is_file():
            return [str(beside)]
    return ["libweft.so.0"]


def _load(ffi):
    reasons = []
    for name in _libraries():
        try:
            return ffi.dlopen(name, ffi.RTLD_NOW | ffi.RTLD_LOCAL)
        except OSError as error:
            reasons.append(str(error))
    raise ImportError(
        "weft: libweft was not loaded; install weft, or set WEFT_LIBRARY to the path of libweft.so: " + "; ".join(reasons)
    )


def _check_sizes(ffi, lib):
    """Raise ImportError where the library was built with other structs than the headers declare."""
    for name in ffi.list_types()[1]:
        if ffi.typeof("struct " + name).fields is None:
            continue  # opaque
        declared, built = ffi.sizeof("struct " + name), lib.weft_struct_bytes(name.encode())
        if declared != built:
            raise ImportError(
                f"weft: struct {name} has {declared} bytes in the headers and {built} in the library; they are of different "
                "releases: set WEFT_LIBRARY and WEFT_INCLUDE to one installation"
            )


ffi = cffi.FFI()
ffi.cdef(declarations([path.read_text() for path in find_headers()]))
lib = _load(ffi)
_check_sizes(ffi, lib)
NULL = ffi.NULL
