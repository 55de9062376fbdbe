#!/bin/sh
# usage: check_module.sh WEFT WORKER [MODULE]   what is reported where the module of a transport is
# missing, damaged, or not the one that was asked for (MODULE: libweft_verbs.so); jobs over other transports
# run all the same
set -u
weft=$1 worker=$2 other=${3:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/modules"
export WEFT_MODULE_DIR="$folder/modules"
failures=0

refused() { # WHAT SENTENCE...
    what=$1
    shift
    if WEFT_TRANSPORT_BACKEND=ucx "$weft" run -n 2 -l "$folder/logs" -- "$worker" > "$folder/out" 2>&1; then
        echo "$what: the job ended with 0"
        failures=1
    fi
    cat "$folder"/logs/* >> "$folder/out" 2> /dev/null
    "$weft" doctor --transport ucx:tcp --devices lo --no-cache > "$folder/doctor" 2>&1
    for sentence in "$@"; do
        for report in out doctor; do
            tr '\n' ' ' < "$folder/$report" | tr -s ' ' | grep -qF "$sentence" && continue
            echo "$what: no \"$sentence\" in $report:"
            cat "$folder/$report"
            failures=1
        done
    done
    rm -rf "$folder/logs"
}

refused missing "the transport ucx is not installed: there is no libweft_ucx.so in "
cat "$0" "$0" "$0" > "$folder/modules/libweft_ucx.so"
refused damaged "the transport ucx cannot be loaded (" "invalid ELF header"
if [ -n "$other" ]; then
    cp "$other" "$folder/modules/libweft_ucx.so"
    refused other "is of another build of weft"
fi
for backend in shm tcp auto; do
    export WEFT_TRANSPORT_BACKEND=$backend
    if ! "$weft" run -n 2 -l "$folder/logs" -- "$worker" > "$folder/out" 2>&1; then
        echo "$backend needs the module of ucx:"
        cat "$folder/out"
        failures=1
    fi
done
exit $failures
