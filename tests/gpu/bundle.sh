#!/bin/sh
# bundle.sh - packs what the NCCL parts of run.sh need on a machine without a compiler:
#
#     tests/gpu/bundle.sh BUILD-FOLDER OUT.tar.gz     then, there: tar xzf OUT.tar.gz -C DIR; tests/gpu/run.sh nccl-net DIR
#
# The plugin, nccl_pair, and the shared libraries of both except those of the C library, CUDA and NCCL.
set -eu
[ $# = 2 ] || { echo "usage: tests/gpu/bundle.sh BUILD-FOLDER OUT.tar.gz" >&2; exit 2; }
build=$1
out=$(realpath -m "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/lib"
for name in libnccl-net-weft.so nccl_pair; do
    file=$(find "$build" -name $name -type f | head -n 1)
    [ -n "$file" ] || { echo "bundle.sh: $build has no $name; build it first" >&2; exit 1; }
    cp "$file" "$work/"
    ldd "$file" | awk '$3 ~ /^\// {print $3}' | grep -vE '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*|libcuda[^/]*|libnccl)\.so' |
        while read -r library; do cp -L "$library" "$work/lib/"; done
done
tar -czf "$out" -C "$work" .
echo "$out: $(du -h "$out" | cut -f 1)"
