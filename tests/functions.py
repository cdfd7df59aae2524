"""Test files that are a list of functions named test_*."""

import sys
import traceback


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
