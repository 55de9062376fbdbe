#!/bin/sh
# test_standalone.sh SOURCE-FOLDER OUT-FOLDER - the standalone program builds with nvcc, without a warning, and its tests pass:
# the CPU's on any machine, the GPU's where there is one. Ends with 77 (skipped) where there is no nvcc.
set -eu
source=$1 out=$2
if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "skipped: there is no nvcc here (the CUDA toolkit), so the CUDA kernels were not compiled"
    exit 77
fi
"$source/kernels/cuda/standalone/build.sh" --out "$out" --jobs 2
"$out/kernel_check" --test
readelf -d "$out/kernel_check" | grep -q "runpath.*/lib64" # where the memory table finds the runtime of the toolkit of nvcc
"$out/kernel_check" --bench --count 65536 --rounds 1 --json >"$out/bench.jsonl"
grep -q '"kernel":"sum f32' "$out/bench.jsonl"
grep -q '"kernel":"powersgd rank 4"' "$out/bench.jsonl"
grep -q '"kernel":"top-k 1 % with residual"' "$out/bench.jsonl"
"$out/kernel_check" --help >/dev/null
if "$out/kernel_check" --count nonsense 2>/dev/null; then
    echo "kernel_check took a count that is no number"
    exit 1
fi
