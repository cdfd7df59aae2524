"""Runs the program; each test file is a list of functions named test_*."""

import json
import os
import subprocess
import sys
import traceback

PROGRAM = sys.argv[1]


def run(*args, stdin=None, timeout=120):
    return subprocess.run([PROGRAM, *map(str, args)], input=stdin, capture_output=True, timeout=timeout)


def run_json(*args, **more):
    result = run(*args, "--json", **more)
    assert result.returncode == 0, f"exit {result.returncode}: {result.stderr.decode()}"
    return json.loads(result.stdout)


class Golden:
    """Where the tiny models are."""

    def __init__(self, root):
        self.root = root
        self.model = os.path.join(root, "targets", "qwen3_q4_g64")
        self.target = os.path.join(root, "pairs", "targets", "qwen3")
        self.drafter = os.path.join(root, "pairs", "p4_vanilla")


def main(namespace):
    """Every test_* of a file, in order; the exit code says whether all passed."""
    failed = 0
    for name, test in list(namespace.items()):
        if not name.startswith("test_"):
            continue
        try:
            test()
            print(f"ok    {name}")
        except Exception:
            failed += 1
            print(f"FAIL  {name}")
            traceback.print_exc()
    sys.exit(1 if failed else 0)
