#!/bin/sh
# usage: in_own_logs.sh WEFT ARGUMENTS...   `weft run` with a log directory of its own, removed afterwards. The
# working directory may not be writable.
set -eu
weft=$1
shift
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
"$weft" run -l "$logs" "$@"
