#!/bin/sh
# usage: run_job.sh WEFT PROGRAM [ARGUMENT...]   a job of two ranks, whose logs are kept nowhere
set -eu
weft=$1
shift
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
"$weft" run -n 2 -l "$logs" -- "$@"
