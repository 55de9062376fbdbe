#!/bin/sh
# bundle.sh - packs what run.sh needs on a machine without a compiler, beside a source tree:
#
#     tests/gpu/bundle.sh [--kernels] BUILD-FOLDER OUT.tar.gz     then, there: tar xzf OUT.tar.gz -C DIR; tests/gpu/run.sh nccl-net DIR
#
# The programs and libraries of weft at their places in a build folder, and in lib/ the shared libraries that they
# need, except those of the C library, CUDA and NCCL. --kernels: kernel_check too, built by nvcc if the folder has none.
set -eu
kernels=no
if [ "${1:-}" = --kernels ]; then
    kernels=yes
    shift
fi
[ $# = 2 ] || { echo "usage: tests/gpu/bundle.sh [--kernels] BUILD-FOLDER OUT.tar.gz" >&2; exit 2; }
build=$(realpath "$1")
out=$(realpath -m "$2")
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lib"

add() { # PATH below the build folder; a link is replaced by its file
    mkdir -p "$work/$(dirname "$1")"
    cp -L "$build/$1" "$work/$1"
    ldd "$build/$1" | awk '$3 ~ /^\// {print $3}' |
        grep -vE '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*|libcuda[^/]*|libstdc\+\+|libgcc_s|libnccl|libweft[^/]*)\.so' |
        while read -r library; do cp -L "$library" "$work/lib/"; done
}

for path in nccl/libnccl-net-weft.so tests/gpu/nccl_pair tests/gpu/device_rank tools/weft client/libweft.so.0 client/libweft_core.so; do
    [ -f "$build/$path" ] || { echo "bundle.sh: $1 has no $path; build it first" >&2; exit 1; }
    add "$path"
done
[ ! -f "$build/kernels/libweft_cuda.so.0" ] || add kernels/libweft_cuda.so.0
if [ $kernels = yes ]; then
    check=$(find "$build" -name kernel_check -type f | head -n 1)
    if [ -z "$check" ]; then
        "$here/../../kernels/cuda/standalone/build.sh" --out "$work/check"
        check=$work/check/kernel_check
    fi
    cp "$check" "$work/kernel_check"
    rm -rf "$work/check"
fi
tar -czf "$out" -C "$work" .
bytes=$(wc -c <"$out")
echo "$out: $(du -h "$out" | cut -f 1)"
[ "$bytes" -lt 60000000 ] || { echo "bundle.sh: the bundle has $bytes bytes, 60000000 or more" >&2; exit 1; }
