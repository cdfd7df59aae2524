#!/usr/bin/env python3
"""Runs commands in turns and compares one figure of their JSON output.

    interleave.py [--runs N] --key KEY[.KEY] COMMAND COMMAND [COMMAND ...]

Every round runs each command once, the order rotated, so that a machine that changes its speed changes it for
all. Prints each command's median, and the median of the ratios to the first with a bootstrap 95 % interval."""
import argparse
import json
import shlex
import statistics
import subprocess
import sys

from compare.stats import interval


def figure(command, key):
    run = subprocess.run(shlex.split(command), capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{command}: exit {run.returncode}: {run.stderr.strip()}")
    value = json.loads(run.stdout)
    for part in key.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return float(value)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--runs", type=int, default=7)
    p.add_argument("--key", required=True)
    p.add_argument("commands", nargs="+")
    a = p.parse_args()
    values = [[] for _ in a.commands]
    for run in range(a.runs):
        for i in range(len(a.commands)):
            at = (run + i) % len(a.commands)
            values[at].append(figure(a.commands[at], a.key))
    rows = []
    for command, got in zip(a.commands, values):
        ratios = [x / base for x, base in zip(got, values[0])]
        low, high = interval(ratios)
        rows.append({"command": command, "median": statistics.median(got), "values": got,
                     "ratio": statistics.median(ratios), "ratio_low": low, "ratio_high": high})
    print(json.dumps({"key": a.key, "runs": a.runs, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
