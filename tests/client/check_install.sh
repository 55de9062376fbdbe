#!/bin/sh
# usage: check_install.sh BUILD_DIR   install into an empty root and build a program against it with pkg-config alone
set -eu
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
DESTDIR="$root" meson install -C "$1" --no-rebuild --quiet > "$root/log" 2>&1 || { cat "$root/log"; exit 1; }
pc=$(find "$root" -name weft.pc)
[ -n "$pc" ] || { echo "no weft.pc installed"; exit 1; }
export PKG_CONFIG_PATH="${pc%/*}" PKG_CONFIG_SYSROOT_DIR="$root"
cat > "$root/program.c" <<'PROGRAM'
#include <stdio.h>
#include <string.h>
#include <weft/weft.h>
int main(void)
{
    struct weft_options options;
    struct weft_session *session = NULL;
    weft_options_init(&options);
    options.coordinator = "not a place";
    enum weft_status status = weft_init(&options, &session);
    printf("%s %s: %s\n", weft_version(), weft_status_name(status), weft_error_text(NULL));
    return status == WEFT_ERR_INVALID && session == NULL && strlen(weft_error_text(NULL)) > 0 ? 0 : 1;
}
PROGRAM
[ "$(pkg-config --modversion weft)" = 0.1.0 ] || { echo "weft.pc has another version"; exit 1; }
case " $(pkg-config --libs weft) " in *event*|*ucp*|*protobuf*|*crypto*) echo "private libraries leak: $(pkg-config --libs weft)"; exit 1;; esac
${CC:-cc} -std=c11 -Wall -Wextra -Werror -o "$root/program" "$root/program.c" $(pkg-config --cflags --libs weft)
libdir=$(dirname "$(find "$root" -name 'libweft.so.0' | head -1)")
LD_LIBRARY_PATH="$libdir" "$root/program"

# transports in modules: the installed programs find them
for name in ucx verbs; do
    [ -e "$1/transport/libweft_$name.so" ] || continue
    [ -e "$libdir/weft/libweft_$name.so" ] || { echo "weft/libweft_$name.so is not beside libweft.so"; exit 1; }
done
if [ -e "$libdir/weft/libweft_ucx.so" ]; then
    weft=$(find "$root" -path '*/bin/weft')
    "$weft" doctor --transport ucx:tcp --devices lo --no-cache > "$root/doctor" || [ $? -eq 1 ] || {
        cat "$root/doctor"
        exit 1
    }
fi
for library in libweft.so.0 weft/libweft_core.so; do
    if readelf -d "$libdir/$library" | grep NEEDED | grep -E 'libuc[pst]|libibverbs|librdmacm'; then
        echo "$library links a library that belongs to a module"
        exit 1
    fi
done
if readelf -d "$libdir/libweft.so.0" | grep NEEDED | grep -v -E '\[(libc|libpthread|ld-linux[^]]*|lib(a|t|ub)san)\.so'; then
    echo "libweft.so links more than the C library"
    exit 1
fi

# without its core libweft.so returns a status and a sentence
mv "$libdir/weft/libweft_core.so" "$root/core"
core_is_refused() { # WHAT
    if LD_LIBRARY_PATH="$libdir" "$root/program" > "$root/refused" ||
        ! grep -q 'WEFT_ERR_UNSUPPORTED: weft cannot be loaded (.*libweft_core.so: ' "$root/refused"; then
        echo "libweft_core.so is $1:"
        cat "$root/refused"
        exit 1
    fi
}
core_is_refused missing
echo "this is no library" > "$libdir/weft/libweft_core.so"
core_is_refused damaged
mv "$root/core" "$libdir/weft/libweft_core.so"

# the archive: no libweft.so is there at run time
${CC:-cc} -std=c11 -o "$root/static" "$root/program.c" $(pkg-config --static --cflags --libs weft | sed 's/-lweft /-l:libweft.a /')
if readelf -d "$root/static" | grep -q libweft; then echo "the program linked with libweft.a needs libweft.so"; exit 1; fi
"$root/static"

# the build tree, nothing installed
unset PKG_CONFIG_SYSROOT_DIR
export PKG_CONFIG_PATH="$1/meson-uninstalled"
${CC:-cc} -std=c11 -Wall -Wextra -Werror -o "$root/beside" "$root/program.c" $(pkg-config --cflags --libs weft)
LD_LIBRARY_PATH="$(pkg-config --variable=prefix weft)/client" "$root/beside"
