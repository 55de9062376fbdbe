#!/bin/sh
# usage: check_clash.sh WEFT BUILD SOURCE BACKEND   a job of a program that clashes on purpose
#
# The program is SOURCE (mapped.c) together with a definition of every function that the libraries under
# libweft export: libevent, protobuf-c, libcrypto, inih, xxhash, UCX, libibverbs, librdmacm. Each definition
# aborts with its name, and the program exports them all (-rdynamic). So one reference of those libraries or
# of libweft that binds to the program ends the job.
set -eu
weft=$1 build=$2 source=$3 backend=$4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tops="$build/client/libweft_core.so"
for name in ucx verbs; do
    [ ! -e "$build/transport/libweft_$name.so" ] || tops="$tops $build/transport/libweft_$name.so"
done

# all libraries below, but for the C library, and those of weft itself
ldd $tops | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' |
    grep -v -E '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*)\.so' | sort -u > "$folder/libraries"
for wanted in libevent libprotobuf-c libcrypto; do
    grep -q "/$wanted" "$folder/libraries" || { echo "libweft_core.so does not link $wanted"; exit 1; }
done
# a name that the C library or the compiler has as well stays its own
names() { # FILE...: the functions that these libraries export
    nm -D --defined-only "$@" | awk 'NF == 3 && $2 ~ /[TiW]/ { sub(/@.*/, "", $3); print $3 }' | sort -u
}
names $(ldd $tops | sed -n 's/.* => \(\/[^ ]*\/lib[cm]\.so[^ ]*\) .*/\1/p' | sort -u) > "$folder/own"
names $(cat "$folder/libraries") | grep -v '^_' | comm -23 - "$folder/own" > "$folder/names"
for wanted in event_base_new event_base_new_with_config protobuf_c_message_pack EVP_MAC_fetch; do
    grep -qx "$wanted" "$folder/names" || { echo "$wanted is not among the functions to clash with"; exit 1; }
done
{
    echo '#include <stdlib.h>'
    echo '#include <string.h>'
    echo '#include <unistd.h>'
    echo 'static void clash(const char *name) { if (write(2, name, strlen(name)) < 0) {} abort(); }'
    sed 's/.*/void &(void); void &(void) { clash("the program'"'"'s & was called\\n"); }/' "$folder/names"
} > "$folder/clash.c"
export PKG_CONFIG_PATH="$build/meson-uninstalled"
${CC:-cc} -std=gnu11 -w -fno-builtin -rdynamic -o "$folder/program" "$source" "$folder/clash.c" \
    $(pkg-config --cflags --libs weft) "-Wl,-rpath,$build/client"
echo "$(wc -l < "$folder/names") functions of $(wc -l < "$folder/libraries") libraries"
export WEFT_TRANSPORT_BACKEND="$backend"
"$weft" run -n 2 -s 1 -l "$folder/logs" -- "$folder/program" +libweft_core +libevent
