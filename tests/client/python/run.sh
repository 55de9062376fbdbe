#!/bin/sh
# run.sh BUILD-FOLDER TEST-FILE-OR-FOLDER... - tests of the Python package, by the Python of WEFT_PYTHON, else of the cached environment
# (tools/lib/python-env), else the system's. Ends with 77 (skipped) where none has cffi, numpy, pytest and the tests' own modules.
set -eu
build=$1
shift
cached=${XDG_CACHE_HOME:-$HOME/.cache}/weft/python-env/bin/python
# Byte code is kept in the build folder: without it each process compiles torch again. The fork server leaves no thread
# of OpenMP behind.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="$build/pycache" OMP_NUM_THREADS=1
for python in ${WEFT_PYTHON:-} "$cached" /usr/bin/python3 python3; do
    if "$python" -c 'import cffi, numpy, pytest' 2>/dev/null; then
        status=0
        WEFT_BUILD=$build "$python" -m pytest -q -rs -p no:cacheprovider -p no:warnings --rootdir "$(dirname "$0")" "$@" || status=$?
        [ $status != 5 ] || status=77 # pytest skipped all files
        exit $status
    fi
done
echo "skipped: no Python here has cffi, numpy and pytest; tools/install-packages --full or tools/lib/python-env installs them"
exit 77
