#!/usr/bin/env bash
# Installs into a folder of its own, then builds and runs the example against what was installed, with the
# shared library and with the static one. install.sh BUILD SOURCE GOLDEN
set -euo pipefail
build=$1 source=$2 golden=$3
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$build" --prefix "$prefix" >/dev/null
pc=$(find "$prefix" -name dspark.pc)
lib=$(dirname "$(dirname "$pc")")
export PKG_CONFIG_PATH=$(dirname "$pc")${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}

# shellcheck disable=SC2046  # flags are words
${CC:-cc} -Wall -Wextra -Werror "$source/examples/generate.c" $(pkg-config --cflags --libs dspark) \
    -Wl,-rpath,"$lib" -o "$prefix/shared"
# shellcheck disable=SC2046
${CC:-cc} "$source/examples/generate.c" \
    $(pkg-config --cflags --libs --static dspark | sed 's/-ldspark\( \|$\)/-l:libdspark.a /') -o "$prefix/static"
ldd "$prefix/shared" | grep libdspark >"$prefix/linked" # all of it: a reader that leaves early fails the pipe
! ldd "$prefix/static" | grep -q libdspark

model=$golden/pairs/targets/qwen3 drafter=$golden/pairs/p4_vanilla
"$prefix/shared" "$model" "$drafter" hello >"$prefix/a"
"$prefix/static" "$model" "$drafter" hello >"$prefix/b"
cmp "$prefix/a" "$prefix/b"
grep -q 'tokens in' "$prefix/a"

"$prefix/bin/dspark" --version
test -s "$prefix/share/man/man1/dspark.1"
# Nothing but the public functions leaves the library.
odd=$(nm -D --defined-only "$lib/libdspark.so" | awk '$2 == "T" || $2 == "D" || $2 == "B" { print $3 }' |
    grep -vE '^ds_(version|status_name|engine_(open|close|get|tokenize)|job_(submit|next|cancel|close|run))$' || true)
test -z "$odd" || { echo "exported: $odd"; exit 1; }
