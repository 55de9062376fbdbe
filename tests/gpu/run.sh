#!/bin/sh
# run.sh - tests that need one GPU, in parts that stand alone:  tests/gpu/run.sh PART [FOLDER]
#
#   FOLDER  a build folder, or what tests/gpu/bundle.sh has unpacked; default: build
#
#   parts         list of the parts
#   cuda          the meson suite "gpu" (needs a build folder)
#   nccl-sockets  two ranks on one GPU over NCCL's own sockets: proves the environment
#   nccl-net      the same through NET/weft; bits equal to those over sockets; ring, tree, PAT; Simple, to 256 MiB
#   nccl-net-ll   ring and tree, LL, to 8 MiB: its small chunks take long where ranks take turns on the GPU
#   nccl-collnet  all_reduces of each type and reduction by CollNet's chain through weft; bits as over sockets
#   nccl-death    one rank is killed: the other gets a remote error
#   nccl-again    communicators are destroyed and made again, ten times
#   nccl-torch    two ranks of PyTorch's DDP: losses and weights through NET/weft equal to those over sockets
#   stream-order  two ranks of weft: stream-ordered calls, bits as on the host, how long they hold the host thread
#   host-first    four ranks of weft, two hosts by name: NCCL inside each, bits as on the host
#   codecs        two ranks of weft: push_pull of 100 MiB on the device with each codec beside dense, interleaved
#   kernels       the CUDA kernels against the scalar ones, tables of small tensors and of matrices included
#   kernel-speed  the CUDA kernels as shares of the bandwidth of a copy on the device
#   sanitizer     the kernels' tests under compute-sanitizer: memcheck, racecheck, synccheck, initcheck
#   torch-cuda    two ranks of PyTorch with CUDA tensors: backend, DDP, optimizers, bits as on the host
#   torch-steps   a gradient of 100 MiB by DDP: weft's hook and codecs, NCCL, PyTorch's fp16 and PowerSGD hooks, interleaved
#   overlap       a GPT by DDP at 1 Gbit/s (delay wrapper): what each way adds to a step and to the host's time, beside NCCL
#   health        memory errors and remapped rows by NVML, as weft doctor reads them
#
# cuda needs a build folder; the others take a bundle too. Those of torch run the Python of WEFT_PYTHON, else python3, with a PyTorch for
# CUDA. Those of kernels build with nvcc what the folder lacks. Each part ends within 8 minutes: a run that has no time left fails.
#
# Exit status 77 and a reason: skipped. No part changes a setting of the GPU.
set -u
part=${1:-parts}
folder=${2:-build}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

started=$(date +%s)
left() { # MOST: seconds that a run may take, so that the part ends within 8 minutes
    rest=$((started + 470 - $(date +%s)))
    [ "$rest" -gt 1 ] || rest=1
    [ "$rest" -lt "$1" ] && echo "$rest" || echo "$1"
}

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

use_libraries() { # those of a bundle
    [ ! -d "$folder/lib" ] || export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

need_nccl() {
    need_gpu
    pair=$(find_file nccl_pair)
    plugin=$(find_file libnccl-net-weft.so)
    if [ -z "$pair" ] || [ -z "$plugin" ]; then
        skip "$folder has no nccl_pair and libnccl-net-weft.so; build them or unpack the bundle"
    fi
    use_libraries
    [ -x "$pair" ] || chmod +x "$pair"
    versions
}

# Runs two ranks on device 0, with their output in $work/NAME.0 and .1. Arguments: NAME, then those of nccl_pair.
pair_run() {
    name=$1
    shift
    pid0='' pid1=''
    common="NCCL_SOCKET_IFNAME=lo NCCL_MAX_CTAS=2 NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0
        CUDA_MODULE_LOADING=EAGER NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH"
    for rank in 1 0; do
        extra=
        [ "$rank" = 1 ] && extra=${victim:-}
        # shellcheck disable=SC2086
        env $common NCCL_HOSTID=node$rank NCCL_DEBUG_FILE="$work/$name.log.$rank" $network \
            timeout "$(left 120)" "$pair" --rank $rank --ranks 2 --id "$work/$name.id" "$@" $extra >"$work/$name.$rank" 2>&1 &
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

# Arguments: protocol, most bytes, algorithms. Each through sockets, then over tcp and shm of weft.
part_net() {
    need_nccl
    protocol=$1 most=$2
    shift 2
    for algorithm in "$@"; do
        ops=all_reduce,reduce_scatter,all_gather,broadcast,reduce
        [ "$algorithm" = Tree ] && ops=all_reduce
        [ "$algorithm" = PAT ] && ops=reduce_scatter,all_gather
        choice="NCCL_ALGO=$algorithm NCCL_PROTO=$protocol"
        network="$sockets $choice"
        pair_run "s-$algorithm" --ops $ops --max "$most"
        [ $status0$status1 = 00 ] || fail "sockets, $choice: ranks ended with $status0 and $status1"
        for backend in tcp shm; do
            through_weft $backend
            network="$network $choice"
            pair_run "w-$algorithm-$backend" --ops $ops --max "$most"
            [ $status0$status1 = 00 ] || fail "weft over $backend, $choice: ranks ended with $status0 and $status1"
            check_path "w-$algorithm-$backend"
            check_bits "s-$algorithm" "w-$algorithm-$backend" "$choice over $backend"
            echo "ok   $choice over $backend: $(grep -c ' ' "$work/s-$algorithm.0") calls to $most bytes, bits as over sockets"
        done
    done
}

check_bits() { # NAME NAME WHAT: equal output of both ranks
    for rank in 0 1; do
        cmp -s "$work/$1.$rank" "$work/$2.$rank" || fail "$3: rank $rank has other bits than over sockets: $(diff "$work/$1.$rank" "$work/$2.$rank" | head -n 4)"
    done
}

part_collnet() {
    need_nccl
    network=$sockets
    pair_run s-types --types
    [ $status0$status1 = 00 ] || fail "sockets: ranks ended with $status0 and $status1"
    for backend in tcp shm; do
        through_weft $backend
        network="$network NCCL_COLLNET_ENABLE=1 NCCL_ALGO=allreduce:collnetchain"
        pair_run "c-$backend" --types
        [ $status0$status1 = 00 ] || fail "CollNet over $backend: ranks ended with $status0 and $status1"
        grep -hE "COLLNET/|CollNet" "$work/c-$backend.log.0" | sed 's/.*NCCL INFO/NCCL:/' | sort -u | head -n 4
        grep -q "via COLLNET/weft/" "$work/c-$backend.log.0" || fail "no channel via COLLNET/weft: NCCL has fallen back"
        check_bits s-types "c-$backend" "CollNet over $backend"
        echo "ok   $part over $backend: $(grep -c ' ' "$work/s-types.0") calls, bits as over sockets"
    done
}

# Finds a Python with PyTorch, cffi too with an argument.
need_torch() {
    need_gpu
    python=${WEFT_PYTHON:-python3}
    "$python" -c "import torch${1:+, $1}" 2>/dev/null ||
        skip "$python has no PyTorch${1:+ and $1}; WEFT_PYTHON names another (tools/lib/python-env --torch makes one)"
    use_libraries
}

# NAME: two ranks of nccl_torch_rank.py with the network of $network.
torch_run() {
    name=$1 pid0='' pid1=''
    for rank in 1 0; do
        # shellcheck disable=SC2086
        env NCCL_SOCKET_IFNAME=lo NCCL_MAX_CTAS=2 NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0 CUDA_MODULE_LOADING=EAGER \
            NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_HOSTID=node$rank NCCL_DEBUG_FILE="$work/$name.log.$rank" $network \
            timeout "$(left 200)" "$python" "$here/nccl_torch_rank.py" $rank "$work/$name.store" ${torch_options:-} >"$work/$name.$rank" 2>"$work/$name.error.$rank" &
        eval "pid$rank=$!"
    done
    wait "$pid0"; status0=$?
    wait "$pid1"; status1=$?
    [ $status0 != 77 ] || skip "$(grep '^skip' "$work/$name.0")"
    [ $status0$status1 = 00 ] || fail "$name: ranks ended with $status0 and $status1: $(tail -q -n 3 "$work/$name".error.?)"
}

part_nccl_torch() {
    need_torch
    plugin=$(find_file libnccl-net-weft.so)
    [ -n "$plugin" ] || skip "$folder has no libnccl-net-weft.so; build it or unpack the bundle"
    versions
    network=$sockets
    torch_run s-torch
    for backend in tcp shm; do
        through_weft $backend
        torch_run "w-torch-$backend"
        [ -n "${torch_options:-}" ] || check_path "w-torch-$backend"
        check_bits s-torch "w-torch-$backend" "DDP over $backend"
        echo "ok   $part over $backend: $(grep -c loss "$work/s-torch.0") losses and the weights as over sockets"
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

find_kernels() {
    kernels=$(find "$folder" -name 'libweft_cuda.so*' -type f | head -n 1)
    [ -z "$kernels" ] || export WEFT_CUDA_KERNELS="${WEFT_CUDA_KERNELS:-$(realpath "$kernels")}"
}

# Runs N ranks of weft with device_rank on device 0. Arguments: N, then those of device_rank. To NCCL each rank is a host.
weft_run() {
    need_gpu
    rank=$(find_file device_rank)
    weft=$folder/tools/weft
    if [ -z "$rank" ] || [ ! -x "$weft" ]; then skip "$folder has no device_rank and tools/weft; build them or unpack the bundle"; fi
    use_libraries
    find_kernels
    versions
    ranks=$1
    shift
    # shellcheck disable=SC2016
    NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket NCCL_NET_PLUGIN=none NCCL_MAX_CTAS=2 NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0 \
        NCCL_RAS_ENABLE=0 CUDA_MODULE_LOADING=EAGER \
        timeout "$(left 440)" "$weft" run -n "$ranks" --log-dir "$work/logs" -- sh -c \
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

part_codecs() { # gradients of ROWS x ROWS
    weft_run 2 --codecs "${WEFT_GPU_ROWS:-5120}" "${WEFT_GPU_ROUNDS:-15}"
    echo "ok   $part"
}

# Two ranks of a Python program under weft run. Arguments: program, then its own; its output is in $work/run.0.
python_run() {
    need_torch cffi
    weft=$folder/tools/weft
    [ -x "$weft" ] || skip "$folder has no tools/weft; build it or unpack the bundle"
    find_kernels
    versions
    # shellcheck disable=SC2016
    WEFT_LIBRARY=$(realpath "$folder/client/libweft.so.0") PYTHONPATH="$here/../../client/python" NCCL_SOCKET_IFNAME=lo NCCL_MAX_CTAS=2 \
        NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0 CUDA_MODULE_LOADING=EAGER \
        timeout "$(left 460)" "$weft" run -n 2 --log-dir "$work/logs" -- sh -c 'export NCCL_HOSTID=node$WEFT_RANK; exec "$0" "$@"' \
        "$python" "$@" >"$work/run.0" 2>"$work/run.1"
    status=$?
    ! grep -q '^skip' "$work/run.0" "$work"/logs/rank*.log || skip "$(cat "$work/run.0" "$work"/logs/rank*.log | grep -m 1 '^skip')"
    [ $status = 0 ] || fail "weft run ended with $status: $(cat "$work"/logs/rank*.log 2>/dev/null | tail -n 8)"
}

part_torch_cuda() {
    python_run "$here/torch_rank.py"
    cat "$work/run.0" "$work"/logs/rank0.log 2>/dev/null | grep -E "held the host|bits as on the host|^torch"
    echo "ok   $part"
}

# The rows of ddp_steps.py with these arguments.
steps_run() {
    python_run "$here/../../tools/bench/torch/ddp_steps.py" --device "${WEFT_GPU_DEVICE:-cuda}" "$@"
    rows=$(cat "$work/run.0" "$work"/logs/rank0.log 2>/dev/null | grep -E "^(matrix|gpt-large|layers) " | sort -u)
    [ -n "$rows" ] || fail "no figures"
    echo "$rows"
    echo "ok   $part"
}

part_torch_steps() { # PyTorch's hooks over NCCL's sockets
    export NCCL_NET=Socket NCCL_NET_PLUGIN=none
    steps_run --models "${WEFT_GPU_MODEL:-matrix}" --rounds "${WEFT_GPU_ROUNDS:-15}" \
        --ways none,hook,codec=bf16,codec=int8,codec=topk:ratio=0.01,codec=powersgd:rank=4,nccl,fp16,powersgd
}

# The same delay for weft and for NCCL, which uses NET/weft: loopback itself cannot be slowed without a change of the machine.
part_overlap() {
    plugin=$(find_file libnccl-net-weft.so)
    [ -n "$plugin" ] || skip "$folder has no libnccl-net-weft.so; build it or unpack the bundle"
    export WEFT_TRANSPORT_BACKEND=tcp WEFT_TRANSPORT_WRAP=delay:rate_bytes=125000000,delay_us=20
    NCCL_NET_PLUGIN=$(realpath "$plugin")
    export NCCL_NET=weft NCCL_NET_PLUGIN
    steps_run --models "${WEFT_GPU_MODEL:-gpt-large}" --rounds "${WEFT_GPU_ROUNDS:-12}" --ways none,hook,codec=int8,codec=powersgd:rank=4,nccl
}

need_kernel_check() {
    need_gpu
    check=$(find_file kernel_check)
    if [ -z "$check" ]; then
        nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
        [ -n "$nvcc" ] || skip "$folder has no kernel_check, and there is no nvcc to build it"
        NVCC=$nvcc timeout "$(left 400)" "$here/../../kernels/cuda/standalone/build.sh" --out "$work/kernels" >"$work/build.0" 2>&1 ||
            fail "kernels/cuda/standalone/build.sh, which has 400 s; a bundle of bundle.sh --kernels has the program"
        check=$work/kernels/kernel_check
    fi
    versions
}

part_kernels() {
    need_kernel_check
    timeout "$(left 460)" "$check" --gpu --test >"$work/run.0" 2>&1
    status=$?
    [ $status = 0 ] || fail "kernel_check ended with $status"
    grep "^  gpu" "$work/run.0"
    echo "ok   $part"
}

part_kernel_speed() {
    need_kernel_check
    timeout "$(left 460)" "$check" --gpu --bench --json >"$work/run.0" 2>&1
    status=$?
    [ $status = 0 ] || fail "kernel_check ended with $status"
    sed -n 's/.*"kernel":"\([^"]*\)".*"time_ms":\([0-9.e+-]*\).*"ratio":\([0-9.e+-]*\).*/\1|\2|\3/p' "$work/run.0" >"$work/rows"
    [ -s "$work/rows" ] || fail "no figures"
    while IFS='|' read -r kernel ms share; do
        case $kernel in
        "add residual, quantise i8") goal=" (goal: at least 0.8)" ;;
        "top-k 1 % with residual") goal=" (goal: at least 0.6)" ;;
        "powersgd rank"*) goal=" (goal: at least 0.7)" ;;
        *) goal= ;;
        esac
        printf '%-34s %9s ms, %s of a copy%s\n' "$kernel" "$ms" "$share" "$goal"
    done <"$work/rows"
    echo "ok   $part"
}

part_sanitizer() {
    need_gpu
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    [ -n "$sanitizer" ] || skip "there is no compute-sanitizer (of the CUDA toolkit)"
    need_kernel_check
    finished=0 tools=4
    for tool in memcheck racecheck synccheck initcheck; do # each may use its share of the time that is left
        timeout "$(left $(((started + 470 - $(date +%s)) / tools)))" "$sanitizer" --tool $tool --error-exitcode 9 "$check" --gpu --test >"$work/$tool.0" 2>&1
        status=$?
        tools=$((tools - 1))
        if [ $status = 124 ]; then echo "note $tool: not finished in time"; continue; fi
        [ $status = 0 ] || fail "$tool: status $status: $(grep -m 5 '=========' "$work/$tool.0")"
        finished=$((finished + 1))
        echo "ok   $tool: $(grep 'SUMMARY' "$work/$tool.0" | tail -n 1)"
    done
    [ $finished -gt 0 ] || fail "no tool has finished in time"
}

part_health() {
    need_gpu
    weft=$folder/tools/weft
    [ -x "$weft" ] || skip "$folder has no tools/weft; build it or unpack the bundle"
    use_libraries
    versions
    timeout "$(left 60)" "$weft" doctor --gpu-metrics >"$work/run.0" 2>"$work/run.1"
    status=$?
    [ $status = 0 ] || fail "weft doctor --gpu-metrics ended with $status: $(tail -n 3 "$work/run.1")"
    grep "^weft_gpu" "$work/run.0"
    grep -q "^weft_gpu_nvml_up 1" "$work/run.0" || fail "NVML does not answer"
    grep -q "^weft_gpu_ecc_uncorrected_total" "$work/run.0" || echo "note the GPU reports no memory errors (no ECC)"
    echo "ok   $part"
}

part_cuda() {
    need_gpu
    [ -f "$folder/build.ninja" ] || skip "$folder is not a build folder"
    versions
    timeout "$(left 460)" meson test -C "$folder" --suite gpu --no-rebuild --print-errorlogs || fail "the suite gpu: status $?"
    echo "ok   $part"
}

case $part in
parts) sed -n 's/^#   \([a-z-][a-z-]*\)  */\1  /p' "$here/run.sh" | grep -v '^FOLDER' ;;
cuda) part_cuda ;;
nccl-sockets) part_sockets ;;
nccl-net) part_net Simple "${WEFT_GPU_BYTES:-268435456}" Ring Tree PAT ;;
nccl-net-ll) part_net LL 8388608 Ring Tree ;;
nccl-collnet) part_collnet ;;
nccl-torch) part_nccl_torch ;;
codecs) part_codecs ;;
kernel-speed) part_kernel_speed ;;
sanitizer) part_sanitizer ;;
torch-steps) part_torch_steps ;;
overlap) part_overlap ;;
health) part_health ;;
nccl-death) part_death ;;
nccl-again) part_again ;;
stream-order) part_stream_order ;;
host-first) part_host_first ;;
kernels) part_kernels ;;
torch-cuda) part_torch_cuda ;;
*) echo "unknown part $part; tests/gpu/run.sh parts lists them" >&2; exit 2 ;;
esac
