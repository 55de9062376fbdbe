#!/bin/sh
# usage: check_symbols.sh LIBRARY MAP   exported symbols are exactly those of the map, all weft_; the soname is right
set -eu
exported=$(nm -D --defined-only "$1" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort)
wanted=$(sed -n '/global:/,/local:/p' "$2" | grep -o 'weft_[a-z0-9_]*' | sort)
if [ "$exported" != "$wanted" ]; then
    echo "exported and libweft.map differ (left: exported, right: map):"
    printf '%s\n' "$exported" > "${TMPDIR:-/tmp}/weft-exported.$$"
    printf '%s\n' "$wanted" | diff "${TMPDIR:-/tmp}/weft-exported.$$" - || true
    rm -f "${TMPDIR:-/tmp}/weft-exported.$$"
    exit 1
fi
if printf '%s\n' "$exported" | grep -qv '^weft_'; then echo "a symbol without weft_ is exported"; exit 1; fi
readelf -d "$1" | grep -q 'SONAME.*\[libweft\.so\.0\]' || { echo "soname is not libweft.so.0"; exit 1; }
# every function that the installed headers declare is exported
for header in "$3"/*.h "$4"/status.h "$4"/types.h; do
    for name in $(grep '^WEFT_API' "$header" | sed 's/(.*//' | grep -o 'weft_[a-z0-9_]*$'); do
        printf '%s\n' "$exported" | grep -qx "$name" || { echo "$name of $header is not exported"; exit 1; }
    done
done
echo "$(printf '%s\n' "$exported" | wc -l) symbols exported"
