#!/bin/sh
# run.sh BUILD-FOLDER TEST-FOLDER - the tests of weft.torch, by the Python of WEFT_PYTHON, else of the cached environment. Ends with
# 77 (skipped) where neither has PyTorch.
set -eu
build=$1 tests=$2
cached=$("$tests/../../../../tools/lib/python-env" --print)/bin/python
for python in ${WEFT_PYTHON:-} "$cached"; do
    if "$python" -c 'import cffi, numpy, pytest, torch.distributed.fsdp' 2>/dev/null; then
        cd "$tests"
        WEFT_BUILD=$build exec "$python" -m pytest -q -p no:cacheprovider "$tests"
    fi
done
echo "skipped: no Python here has cffi, numpy, pytest and PyTorch with FSDP2; tools/lib/python-env --torch makes one"
exit 77
