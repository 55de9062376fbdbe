#!/bin/sh
# kernels/cuda/standalone/build.sh - builds kernel_check, the tests and the benchmark of the kernels as one program, with
# gcc, nvcc and the CUDA runtime alone: no meson, no other library. For a machine with a GPU and a source tree.
set -eu

usage() {
    cat <<'TEXT'
usage: kernels/cuda/standalone/build.sh [--out FOLDER] [--arch LIST] [--on-host] [--jobs N]

Builds FOLDER/kernel_check (default ./kernel_check.out/kernel_check).

  --arch LIST   compute capabilities, such as "80 90"; the last also as PTX for newer devices (default "80 90")
  --on-host     without nvcc: the CUDA kernels run on the CPU, each GPU thread as a fiber: their logic, not their speed
  --jobs N      compilers at a time (default: the processors)
  --help        this text

CC, CXX and NVCC name other compilers.
TEXT
}

refuse() {
    echo "build.sh: $*" >&2
    exit 2
}

out=kernel_check.out arches="80 90" on_host=no jobs=$(nproc 2>/dev/null || echo 2)
while [ $# -gt 0 ]; do
    case $1 in
    --out | --arch | --jobs)
        [ $# -ge 2 ] || refuse "$1 wants a value"
        case $1 in
        --out) out=$2 ;;
        --arch) arches=$2 ;;
        --jobs) jobs=$2 ;;
        esac
        shift
        ;;
    --on-host) on_host=yes ;;
    --help | -h) usage; exit 0 ;;
    *) refuse "unknown option '$1'; see --help" ;;
    esac
    shift
done

mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/../../.."

cc=${CC:-gcc} cxx=${CXX:-g++} nvcc=${NVCC:-nvcc}
command -v "$nvcc" >/dev/null || [ ! -x /usr/local/cuda/bin/nvcc ] || nvcc=/usr/local/cuda/bin/nvcc
[ $on_host = yes ] || command -v "$nvcc" >/dev/null || refuse "there is no nvcc: install the CUDA toolkit, set NVCC, or add --on-host"

# The flags are the library's: no contraction, so that the bits are (meson.build and kernels/meson.build).
common="-std=c11 -O3 -D_GNU_SOURCE -ffp-contract=off -fno-strict-aliasing -fno-delete-null-pointer-checks -fno-math-errno -Wall -Wextra -Werror -Wno-unused-parameter
-Wno-missing-field-initializers -Wno-clobbered -DWEFT_KERNELS_AVX2 -DWEFT_KERNELS_AVX512 -I. -Ibase/include -Iclient/include"
[ "$(uname -m)" = x86_64 ] || common=$(printf '%s' "$common" | sed 's/-DWEFT_KERNELS_AVX2 -DWEFT_KERNELS_AVX512//')
plain="-Itests/kernels/cuda/plain"
cuda="-std=c++17 -O3 -I. -Ibase/include"

# A list of commands, one a line, each makes one object file; then they run some at a time.
list=$out/commands
: >"$list"
compile() { # compile NAME FILE FLAGS...
    name=$1 file=$2
    shift 2
    echo "$* -c $file -o $out/$name.o" >>"$list"
}
for file in base/config/key_value.c base/env.c base/log/*.c base/os/env_system.c base/memory/*.c base/status.c base/types.c base/weft_assert.c kernels/*.c kernels/scalar/*.c compress/*.c compress/*/*.c \
    tools/bench/lib/samples.c tools/bench/kernels/codec_case.c tools/bench/kernels/copy.c tools/bench/kernels/kernelbench.c tests/kernels/cuda/*.c; do
    compile "$(echo "$file" | tr / _)" "$file" "$cc" $common $plain
done
if [ "$(uname -m)" = x86_64 ]; then
    for file in kernels/avx2/*.c; do
        compile "$(echo "$file" | tr / _)" "$file" "$cc" $common -mavx2 -mf16c
    done
    for file in kernels/avx512/*.c; do
        compile "$(echo "$file" | tr / _)" "$file" "$cc" $common -mavx512f -mavx512bw -mavx512vl -mavx512dq
    done
fi
for file in tests/kernels/test_*.c; do
    name=$(basename "$file" .c)
    compile "$name" "$file" "$cc" $common $plain "-Dmain=cpu_$name"
done
if [ $on_host = yes ]; then
    host="$cxx $cuda -O1 -ffp-contract=off -Wall -Wextra -Werror -Wno-unknown-pragmas -Itests/kernels/cuda/on_host -x c++"
    for file in kernels/cuda/*.cu tests/kernels/cuda/device_memory.cu tests/kernels/cuda/on_host/on_host.cc; do
        compile "$(echo "$file" | tr / _)" "$file" $host
    done
    link="$cxx"
else
    codes= last=
    for arch in $arches; do
        codes="$codes -gencode arch=compute_$arch,code=sm_$arch"
        last=$arch
    done
    [ -n "$last" ] || refuse "--arch wants at least one compute capability"
    codes="$codes -gencode arch=compute_$last,code=compute_$last"
    # -fmad=false: a*b+c stays two roundings. Divisions and roots are exact and denormals kept by nvcc's own defaults.
    for file in kernels/cuda/*.cu tests/kernels/cuda/device_memory.cu; do
        compile "$(echo "$file" | tr / _)" "$file" "$nvcc" -ccbin "$cxx" $cuda $codes -fmad=false -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror,-ffp-contract=off
    done
    # base/memory/memory_cuda.c looks for the shared runtime when it runs: also in the toolkit, where the system may not look.
    tools=$(dirname "$(readlink -f "$(command -v "$nvcc")")")
    link="$nvcc -ccbin $cxx -cudart static -Xlinker -rpath -Xlinker $(dirname "$tools")/lib64"
fi
rm -f "$out"/*.o
xargs -P "$jobs" -I '{}' sh -c '{} || { echo "build.sh: failed: {}" >&2; exit 255; }' <"$list"
$link "$out"/*.o -o "$out/kernel_check" -lm -lpthread -ldl
echo "build.sh: $out/kernel_check"
