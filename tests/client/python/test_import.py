"""The package loads without numpy and torch, and covers the headers that it is given."""

import re

from conftest import python
from jobs import ROOT


def test_import_needs_neither_numpy_nor_torch():
    status, text = python("import sys, weft; assert not {'numpy', 'torch'} & set(sys.modules), sorted(sys.modules)")
    assert status == 0, text


def test_every_public_function_is_declared():
    functions = set()
    for name in ("client/include/weft/weft.h", "base/include/weft/status.h", "base/include/weft/types.h"):
        text = re.sub(r"/\*.*?\*/", "", (ROOT / name).read_text(), flags=re.S)
        functions |= set(re.findall(r"WEFT_API[^;#]*?\b(weft_\w+)\s*\(", text))
    assert len(functions) > 80
    status, text = python(f"from weft._abi import lib\nfor name in {sorted(functions)}: getattr(lib, name)")
    assert status == 0, text


def test_every_error_has_a_class():
    text = (ROOT / "base/include/weft/status.h").read_text()
    names = re.findall(r"^\s+(WEFT_ERR_\w+) = ", text, flags=re.M)
    status, text = python(f"from weft._errors import _BY_NAME\nassert set(_BY_NAME) == set({names})")
    assert status == 0, text


def test_a_missing_library_is_one_sentence():
    status, text = python("import weft", WEFT_LIBRARY="/nonexistent/libweft.so")
    assert status != 0
    assert "ImportError: weft: libweft was not loaded; install weft, or set WEFT_LIBRARY" in text


def test_missing_headers_are_one_sentence(tmp_path):
    package = tmp_path / "a/b/c/weft"
    package.mkdir(parents=True)
    for path in (ROOT / "client/python/weft").glob("*.py"):
        (package / path.name).write_text(path.read_text())
    code = f"import sys; sys.path.insert(0, {str(package.parent)!r}); import weft"
    status, text = python(code, WEFT_LIBRARY=str(tmp_path / "x/libweft.so"))
    if status == 0 or "libweft was not loaded" in text:  # headers of an installed weft
        return
    assert "the headers weft/weft.h, status.h and types.h were not found" in text


def test_init_without_a_job_names_what_is_missing():
    status, text = python(
        "import weft\ntry: weft.init('127.0.0.1:9', deadline=0.3)\n"
        "except weft.WeftError as error: print(type(error).__name__, error.name, error)\nelse: raise SystemExit(3)"
    )
    assert status == 0, text
    assert "127.0.0.1:9" in text


def test_a_variable_set_after_the_import_is_seen():
    status, text = python(
        "import os, weft\ntry: weft.init('127.0.0.1:9', deadline=0.1)\nexcept weft.WeftError: pass\n"
        "for i in range(200): os.environ[f'MOVED_{i}'] = 'the array of variables moves'\n"
        "os.environ['WEFT_NO_SUCH_NAME'] = '1'\n"
        "try: weft.init('127.0.0.1:9', deadline=0.1)\nexcept weft.WeftError: pass"
    )
    assert status == 0 and "WEFT_NO_SUCH_NAME is no option" in text, text


def test_session_without_init():
    status, text = python("import weft\ntry: weft.session()\nexcept weft.WrongState as error: print(error)")
    assert status == 0 and "call weft.init() first" in text


def test_headers_of_another_release_are_refused(tmp_path):
    folder = tmp_path / "weft"
    folder.mkdir()
    for name in ("client/include/weft/weft.h", "base/include/weft/status.h", "base/include/weft/types.h"):
        text = (ROOT / name).read_text().replace("    uint64_t sent_bytes; ", "    uint64_t another;\n    uint64_t sent_bytes; ")
        (folder / name.rsplit("/", 1)[1]).write_text(text)
    status, text = python("import weft", WEFT_INCLUDE=str(tmp_path))
    assert status != 0 and "struct weft_stats has" in text and "of different releases" in text, text
