#!/bin/sh
# run.sh BUILD-FOLDER TEST-FOLDER - the tests of the Python package, by the Python of WEFT_PYTHON, else of the cached environment
# (tools/lib/python-env), else the system's. Ends with 77 (skipped) where none has cffi, numpy and pytest.
set -eu
build=$1 tests=$2
cached=${XDG_CACHE_HOME:-$HOME/.cache}/weft/python-env/bin/python
for python in ${WEFT_PYTHON:-} "$cached" /usr/bin/python3 python3; do
    if "$python" -c 'import cffi, numpy, pytest' 2>/dev/null; then
        cd "$tests"
        WEFT_BUILD=$build exec "$python" -m pytest -q -p no:cacheprovider "$tests"/test_*.py
    fi
done
echo "skipped: no Python here has cffi, numpy and pytest; tools/install-packages --full or tools/lib/python-env installs them"
exit 77
