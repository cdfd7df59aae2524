#!/usr/bin/env python3
"""Every kernel's speed as a share of what the machine allows: a table of ds_check's measurements beside bench/roofline's.

    kernel_roofline.py [--check PROGRAM] [--only KERNEL] [--quick] [--out PREFIX]

One thread. Writes PREFIX.json and PREFIX.md. The limit is the longer of bytes / bandwidth, at the size of what
the calls read in turn, and operations / the rate of their arithmetic: the 4-bit loop, int8 or fp32."""
import argparse
import os
import shlex
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from compare import Failure, kernels  # noqa: E402
from compare.files import compile_roofline  # noqa: E402
from compare.main import processor  # noqa: E402
from compare.process import run, run_json  # noqa: E402
from compare.table import save_as  # noqa: E402


def measure_machine(args, isa, sizes):
    program = compile_roofline(args.work, kernels.FLAGS[isa])
    # many short ones, as ds_check does: the best of them is what no other program disturbed
    return run_json([program, "--threads", 1, "--sizes", ",".join(f"{size >> 10}K" for size in sizes), "--seconds",
                     0.003, "--repeats", 11 if args.quick else 51], args.timeout)


def table(args, argv):
    command = [args.check, "--bench", "--json"] + (["--only", args.only] if args.only else [])
    cases, skipped = kernels.parse_bench(run(command, args.timeout))
    measured = [case for case in cases if case["isa"] in kernels.FLAGS]
    sizes = sorted({kernels.bucket(case["set"]) for case in measured if case.get("bytes")})
    if not sizes:
        raise Failure(f"{shlex.join(command)} measured nothing with a limit")
    machines, rows = {}, []
    for isa in dict.fromkeys(case["isa"] for case in measured):
        machines[isa] = kernels.best_machine([measure_machine(args, isa, sizes) for _ in range(2)])
        rows += [kernels.beside_limit(case, machines[isa]) for case in measured if case["isa"] == isa]
    header = {"date": time.strftime("%Y-%m-%d %H:%M:%S %Z"), "processor": processor(),
              "command": "`" + shlex.join(["bench/kernel_roofline.py", *argv]) + "`"}
    return {"header": header, "machines": machines, "rows": rows, "skipped": skipped}


def main(argv):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", default=os.path.join(root, "build/release/tests/kernel/ds_check"), metavar="PROGRAM")
    p.add_argument("--only", metavar="KERNEL")
    p.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "dspark-compare"), metavar="DIR")
    p.add_argument("--quick", action="store_true", help="measures the machine only shortly")
    p.add_argument("--timeout", type=float, default=1800, metavar="S", help="longest time of one command")
    p.add_argument("--out", default="kernels", metavar="PREFIX")
    args = p.parse_args(argv)
    try:
        result = table(args, argv)
    except Failure as failure:
        print(f"kernel_roofline.py: {failure}", file=sys.stderr)
        return 1
    save_as(args.out, result, kernels.markdown(result))
    print(f"{args.out}.md", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
