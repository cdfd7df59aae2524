#!/usr/bin/env bash
# run.sh [PROMPT]: fetches the demo model and answers a prompt, first plain, then speculative.
. "$(dirname "$0")/lib.sh"
dir=$(cache_dir)/models
get_smollm2 "$dir"
exec "$root/build/release/dspark" generate --model "$dir/$smollm2_gguf" \
  --drafter "$root/models/smollm2-135m-dspark-q4" --compare --max-new-tokens 256 --max-draft 3 \
  --prompt "${1:-Write a Python function that returns the first n primes.}"
