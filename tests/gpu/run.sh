#!/bin/sh
# run.sh - tests that need one GPU, in parts that stand alone:  tests/gpu/run.sh PART [FOLDER]
#
#   FOLDER  a build folder, or what tests/gpu/bundle.sh has unpacked; default: build
#
#   parts         list of the parts
#   cuda          the meson suite "gpu" (needs a build folder)
#   nccl-sockets  two ranks on one GPU over NCCL's own sockets: proves the environment
#   nccl-net      the same through NET/weft; bits equal to those over sockets; ring, tree, PAT x LL, Simple
#   nccl-death    one rank is killed: the other gets a remote error
#   nccl-again    communicators are destroyed and made again, ten times
#   stream-order  two ranks of weft: stream-ordered calls, bits as on the host, how long they hold the host thread
#   host-first    four ranks of weft, two hosts by name: NCCL inside each, bits as on the host
#   kernels       the CUDA kernels against the scalar ones, tables of small tensors and of matrices included
#   torch-cuda    two ranks of PyTorch with CUDA tensors: backend, DDP, optimizers, bits as on the host
#
# stream-order, host-first and torch-cuda need a build folder; kernels builds with nvcc what the folder lacks; torch-cuda runs the Python of WEFT_PYTHON, else python3, with a PyTorch for CUDA.
#
# Exit status 77 and a reason: skipped. No part changes a setting of the GPU.
set -u
part=${1:-parts}
folder=${2:-build}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

skip() {
    echo "SKIP $part: $*"
    exit 77
}

find_file() { # NAME: its path below the folder
    find "$folder" -name "$1" -type f 2>/dev/null | head -n 1
}

versions() {
    nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>/dev/null | sed 's/^/GPU: /'
    echo "kernel: $(uname -r)"
}

need_gpu() {
    command -v nvidia-smi >/dev/null 2>&1 || skip "no nvidia-smi, so no NVIDIA driver"
    nvidia-smi -L 2>/dev/null | grep -q GPU || skip "no GPU: $(nvidia-smi -L 2>&1 | head -n 1)"
}

need_nccl() {
    need_gpu
    pair=$(find_file nccl_pair)
    plugin=$(find_file libnccl-net-weft.so)
    [ -n "$pair" ] && [ -n "$plugin" ] || skip "$folder has no nccl_pair and libnccl-net-weft.so; build them or unpack the bundle"
    [ -d "$folder/lib" ] && export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    [ -x "$pair" ] || chmod +x "$pair"
    versions
}

# Runs two ranks on device 0, with their output in $work/NAME.0 and .1. Arguments: NAME, then those of nccl_pair.
pair_run() {
    name=$1
    shift
    common="NCCL_SOCKET_IFNAME=lo NCCL_MAX_CTAS=2 NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0
        CUDA_MODULE_LOADING=EAGER NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH"
    for rank in 1 0; do
        extra=
        [ "$rank" = 1 ] && extra=${victim:-}
        # shellcheck disable=SC2086
        env $common NCCL_HOSTID=node$rank NCCL_DEBUG_FILE="$work/$name.log.$rank" $network \
            timeout 120 "$pair" --rank $rank --ranks 2 --id "$work/$name.id" "$@" $extra >"$work/$name.$rank" 2>&1 &
        eval "pid$rank=$!"
    done
    wait "$pid0"; status0=$?
    wait "$pid1"; status1=$?
    grep -Eh "^version|^skip" "$work/$name.0" | head -n 2
    [ $status0 = 77 ] && skip "$(grep '^skip' "$work/$name.0")"
    return 0
}

fail() {
    echo "FAIL $part: $*"
    tail -n 5 "$work"/*.0 "$work"/*.1 2>/dev/null
    grep -Eh "WARN|NET/" "$work"/*.log.* 2>/dev/null | tail -n 20
    exit 1
}

sockets="NCCL_NET=Socket NCCL_NET_PLUGIN=none"
through_weft() { # sets $network; the plugin's table that NCCL chose is printed after a run
    network="NCCL_NET=weft NCCL_NET_PLUGIN=$(realpath "$plugin") NCCL_NET_PLUGIN_REF_COUNT=1 WEFT_TRANSPORT_BACKEND=${1:-tcp}"
}

check_path() { # NAME: all connections went through the plugin
    grep -hE "NET/Plugin|Using network|net plugin" "$work/$1.log.0" | sed 's/.*NCCL INFO/NCCL:/' | sort -u | head -n 4
    grep -q "via NET/weft/" "$work/$1.log.0" || fail "no connection via NET/weft"
    ! grep -q "via NET/Socket" "$work/$1.log.0" || fail "a connection via NET/Socket"
}

part_sockets() {
    need_nccl
    network=$sockets
    pair_run sockets
    [ $status0$status1 = 00 ] || fail "ranks ended with $status0 and $status1; nothing of weft was loaded"
    echo "ok   $part: $(grep -c ' ' "$work/sockets.0") calls"
}

part_net() {
    need_nccl
    for algorithm in Ring Tree PAT; do
        for protocol in LL Simple; do
            ops=all_reduce,reduce_scatter,all_gather,broadcast,reduce
            [ $algorithm = Tree ] && ops=all_reduce
            [ $algorithm = PAT ] && ops=reduce_scatter,all_gather
            [ $algorithm$protocol = PATLL ] && continue
            choice="NCCL_ALGO=$algorithm NCCL_PROTO=$protocol"
            network="$sockets $choice"
            pair_run "s-$algorithm-$protocol" --ops $ops
            [ $status0$status1 = 00 ] || fail "sockets, $choice: ranks ended with $status0 and $status1"
            for backend in tcp shm; do
                through_weft $backend
                network="$network $choice"
                pair_run "w-$algorithm-$protocol-$backend" --ops $ops
                [ $status0$status1 = 00 ] || fail "weft over $backend, $choice: ranks ended with $status0 and $status1"
                check_path "w-$algorithm-$protocol-$backend"
                for rank in 0 1; do
                    cmp -s "$work/s-$algorithm-$protocol.$rank" "$work/w-$algorithm-$protocol-$backend.$rank" ||
                        fail "$choice over $backend: rank $rank has other bits than over sockets"
                done
                echo "ok   $choice over $backend: $(grep -c ' ' "$work/s-$algorithm-$protocol.0") calls, bits as over sockets"
            done
        done
    done
}

part_death() {
    need_nccl
    for backend in tcp shm; do
        through_weft $backend
        victim="--die 7"
        pair_run "death-$backend"
        victim=
        [ $status1 = 137 ] || fail "the victim ended with $status1"
        [ $status0 = 3 ] || fail "over $backend the other rank ended with $status0, not with a remote error (3)"
        echo "ok   $part over $backend: $(grep -i error "$work/death-$backend.0" | head -n 1)"
    done
}

part_again() {
    need_nccl
    through_weft tcp
    pair_run again --again 10 --max 1048576
    [ $status0$status1 = 00 ] || fail "ranks ended with $status0 and $status1"
    check_path again
    echo "ok   $part: ten lives"
}

# Runs N ranks of weft with device_rank on device 0. Arguments: N, then those of device_rank. To NCCL each rank is a host.
weft_run() {
    need_gpu
    rank=$(find_file device_rank)
    weft=$folder/tools/weft
    [ -n "$rank" ] && [ -x "$weft" ] || skip "$folder has no device_rank and tools/weft; build them"
    kernels=$(find "$folder" -name 'libweft_cuda.so*' -type f | head -n 1)
    [ -z "$kernels" ] || export WEFT_CUDA_KERNELS="${WEFT_CUDA_KERNELS:-$(realpath "$kernels")}"
    versions
    ranks=$1
    shift
    # shellcheck disable=SC2016
    NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket NCCL_NET_PLUGIN=none NCCL_MAX_CTAS=2 NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0 \
        NCCL_RAS_ENABLE=0 CUDA_MODULE_LOADING=EAGER \
        timeout 240 "$weft" run -n "$ranks" --log-dir "$work/logs" -- sh -c \
        'export NCCL_HOSTID=node$WEFT_RANK WEFT_CLIENT_HOST=host$((WEFT_RANK / 2)); exec "$0" "$@"' "$rank" "$@" \
        >"$work/run.0" 2>"$work/run.1"
    status=$?
    ! grep -q '^skip' "$work/run.0" || skip "$(grep '^skip' "$work/run.0")"
    [ $status = 0 ] || fail "weft run ended with $status: $(tail -q -n 5 "$work"/logs/rank*.log 2>/dev/null)"
    cat "$work/run.0"
}

part_stream_order() {
    weft_run 2
    echo "ok   $part"
}

part_host_first() {
    export WEFT_CLIENT_NCCL=yes
    weft_run 4 --nccl
    echo "ok   $part"
}

part_torch_cuda() {
    need_gpu
    python=${WEFT_PYTHON:-python3}
    weft=$folder/tools/weft
    [ -x "$weft" ] || skip "$folder has no tools/weft; build it"
    "$python" -c 'import torch, cffi' 2>/dev/null ||
        skip "$python has no PyTorch and cffi; WEFT_PYTHON names another (tools/lib/python-env --torch makes one)"
    kernels=$(find "$folder" -name 'libweft_cuda.so*' -type f | head -n 1)
    [ -z "$kernels" ] || export WEFT_CUDA_KERNELS="${WEFT_CUDA_KERNELS:-$(realpath "$kernels")}"
    versions
    WEFT_LIBRARY=$(realpath "$folder/client/libweft.so.0") PYTHONPATH="$here/../../client/python" \
        timeout 300 "$weft" run -n 2 --log-dir "$work/logs" -- "$python" "$here/torch_rank.py" \
        >"$work/run.0" 2>"$work/run.1"
    status=$?
    cat "$work"/logs/rank0.log >>"$work/run.0" 2>/dev/null
    ! grep -q '^skip' "$work/run.0" || skip "$(grep -m 1 '^skip' "$work/run.0")"
    [ $status = 0 ] || fail "weft run ended with $status: $(cat "$work"/logs/rank*.log 2>/dev/null | tail -n 5)"
    grep -E "held the host|bits as on the host|^torch" "$work/run.0"
    echo "ok   $part"
}

part_kernels() {
    need_gpu
    check=$(find_file kernel_check)
    if [ -z "$check" ]; then
        nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
        [ -n "$nvcc" ] || skip "$folder has no kernel_check, and there is no nvcc to build it"
        NVCC=$nvcc "$here/../../kernels/cuda/standalone/build.sh" --out "$work/kernels" >"$work/build.0" 2>&1 ||
            fail "kernels/cuda/standalone/build.sh"
        check=$work/kernels/kernel_check
    fi
    versions
    "$check" --gpu --test >"$work/run.0" 2>&1
    status=$?
    [ $status = 0 ] || fail "kernel_check ended with $status"
    grep "^  gpu" "$work/run.0"
    echo "ok   $part"
}

part_cuda() {
    need_gpu
    [ -f "$folder/build.ninja" ] || skip "$folder is not a build folder"
    versions
    meson test -C "$folder" --suite gpu --no-rebuild --print-errorlogs
}

case $part in
parts) sed -n 's/^#   \([a-z-]*\)  */\1  /p' "$here/run.sh" | grep -v '^FOLDER' ;;
cuda) part_cuda ;;
nccl-sockets) part_sockets ;;
nccl-net) part_net ;;
nccl-death) part_death ;;
nccl-again) part_again ;;
stream-order) part_stream_order ;;
host-first) part_host_first ;;
kernels) part_kernels ;;
torch-cuda) part_torch_cuda ;;
*) echo "unknown part $part; tests/gpu/run.sh parts lists them" >&2; exit 2 ;;
esac
