"""Runs the program; each test file is a list of functions named test_*."""

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from functions import main  # noqa: E402,F401: for the test files

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
