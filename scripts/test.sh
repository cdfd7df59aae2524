#!/usr/bin/env bash
# test.sh: builds with warnings as errors and runs every test, in the release build and under
# AddressSanitizer and UndefinedBehaviorSanitizer. Exits non-zero if anything failed.
. "$(dirname "$0")/lib.sh"
cd "$root"
PATH=$PATH:$HOME/.cargo/bin
scripts/fetch_test_data.sh
status=0
for preset in release asan; do
  say "building: $preset"
  cmake --preset $preset >build/$preset.configure.log 2>&1 || { cat build/$preset.configure.log; exit 1; }
  cmake --build --preset $preset
done
for preset in release asan; do
  say "testing: $preset"
  ctest --preset $preset --no-tests=error || status=1
done
exit $status
