"""How much memory dspark generate takes at its peak with a GGUF model and a drafter."""

import os
import subprocess
import sys

from program import PROGRAM, main

SKIP = 77
ROOT = sys.argv[2]
DATA = os.environ.get("DSPARK_TEST_DATA") or os.path.join(ROOT, ".cache", "test-data")
MODEL = os.path.join(DATA, "smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
DRAFTER = os.path.join(ROOT, "models", "smollm2-135m-dspark-q4")


def peak_bytes(*args):
    """The largest resident set of one run (VmHWM)."""
    with subprocess.Popen([PROGRAM, *args], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, process.returncode
    return usage.ru_maxrss * 1024


def test_peak():
    """The repacked weights, the drafter, the tokenizer and the cache: not the file's pages besides."""
    peak = peak_bytes("generate", "--model", MODEL, "--drafter", DRAFTER, "--prompt", "Tell me a story.",
                      "--max-new-tokens", "64", "--ignore-eos", "--threads", "2")
    size = os.path.getsize(MODEL)
    print(f"peak {peak / 1e6:.1f} MB, {peak / size:.2f} times the file")
    assert peak < 2.2 * size, (peak, size)


if not os.path.exists(MODEL):
    print(f"SKIP: {MODEL} is not there (scripts/fetch_test_data.sh fetches it)")
    sys.exit(SKIP)
main(globals())
