"""Arguments, and the lines one after the other; what was measured is written after each."""

import argparse
import os
import platform
import shlex
import signal
import sys
import tempfile
import time

from . import Failure, lines_forward, lines_generate, lines_threads
from .process import run
from .table import save, unmeasured
from .tools import Bench

LINES = {
    1: ("plain decode", lines_forward.plain_decode),
    2: ("rows of a draft, depth 512", lines_forward.verify_depth_512),
    3: ("Qwen3-0.6B shape", lines_forward.shape_600m),
    4: ("Qwen3-4B shape", lines_forward.shape_4b),
    5: ("prefill", lines_forward.prefill),
    6: ("depth 4096", lines_forward.deep),
    7: ("answers with the drafter", lines_generate.answers),
    8: ("long text with the drafter", lines_generate.long_context),
    9: ("one core taken", lines_threads.core_taken),
    10: ("AVX2 only", lines_forward.avx2_only),
    11: ("more threads", lines_threads.more_threads),
}
FULL = {"runs": 9, "reps": 15, "large_reps": 6, "prefill_reps": 3, "decode_tokens": 96, "new_tokens": 256,
        "prompts_per_set": 6, "draft_prompts": 1, "long_runs": 5,
        "roofline_seconds": 0.1, "wait": 20}
QUICK = {"runs": 2, "reps": 3, "large_reps": 3, "prefill_reps": 1, "decode_tokens": 32, "new_tokens": 48,
         "prompts_per_set": 1, "draft_prompts": 1, "long_runs": 2,
         "roofline_seconds": 0.02, "wait": 0}


def arguments(argv):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    p = argparse.ArgumentParser(prog="compare_llamacpp", formatter_class=argparse.RawDescriptionHelpFormatter,
                                description="Compares dspark with llama.cpp and with the machine's limits: one table.",
                                epilog="lines:\n" + "\n".join(f"  {n:2} {name}" for n, (name, _) in LINES.items()))
    p.add_argument("--dspark", default=os.path.join(root, "build/release/dspark"), metavar="PROGRAM")
    p.add_argument("--llama", metavar="DIR", help="llama-bench, llama-server, llama-quantize and verify_curve")
    p.add_argument("--llama-avx2", metavar="DIR", help="a verify_curve built without AVX-512")
    p.add_argument("--peers", metavar="DIR", help="make_random_gguf.py and drafter_to_gguf.py")
    p.add_argument("--model", required=True, metavar="GGUF", help="SmolLM2-135M as Q4_1")
    p.add_argument("--model-q4_0", metavar="GGUF", help="the same as Q4_0; made from --model by default")
    p.add_argument("--drafter", default=os.path.join(root, "models/smollm2-135m-dspark-q4"), metavar="DIR")
    p.add_argument("--float-drafter", metavar="DIR", help="the drafter before it was quantised, for llama.cpp")
    p.add_argument("--prompts", default=os.path.join(root, "bench/prompts"), metavar="DIR")
    p.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "dspark-compare"), metavar="DIR",
                   help="keeps the files that are made")
    p.add_argument("--rows", default=",".join(map(str, LINES)), metavar="1,2,...", help="lines of the table")
    p.add_argument("--runs", type=int, metavar="N", help="rounds of a line")
    p.add_argument("--quick", action="store_true", help="to see that everything works: few rounds, short answers")
    p.add_argument("--timeout", type=float, default=900, metavar="S", help="longest time of one command")
    p.add_argument("--wait", type=float, metavar="S", help="longest time a round waits for other programs to end")
    p.add_argument("--long-depth", type=int, default=6000, metavar="N", help="tokens of line 8's text")
    p.add_argument("--out", default="compare", metavar="PREFIX", help="PREFIX.json and PREFIX.md")
    args = p.parse_args(argv)
    try:
        args.lines = [int(n) for n in args.rows.split(",")]
    except ValueError:
        p.error(f"--rows takes numbers, not '{args.rows}'")
    if not set(args.lines) <= set(LINES):
        p.error(f"--rows: the lines are 1 to {max(LINES)}")
    if args.runs is not None and args.runs < 1:
        p.error("--runs must be at least 1")
    for name, value in (QUICK if args.quick else FULL).items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    if not os.access(args.dspark, os.X_OK):
        p.error(f"there is no program {args.dspark}: build it, or give --dspark")
    if not os.path.exists(args.model):
        p.error(f"there is no {args.model}")
    return args


def said(command):
    """The first line that a program says about itself, wherever it says it."""
    try:
        out = run(["sh", "-c", '"$@" 2>&1 || :', "sh", *command], 60)
    except Failure:
        return "unknown"
    lines = [line for line in out.splitlines() if "version" in line.lower() or "dspark" in line] or out.splitlines()
    return lines[0].strip() if lines else "unknown"


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            fields = dict(map(str.strip, line.split(":", 1)) for line in file if ":" in line)
    except OSError:
        return platform.processor()
    wide = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")
            if name in fields.get("flags", "").split()]
    return f"{fields.get('model name', platform.processor())} ({fields.get('vendor_id', '')} family " \
           f"{fields.get('cpu family')} model {fields.get('model')}; {', '.join(wide)})"


def header(bench, argv):
    args = bench.args
    llama = "not given"
    if args.llama:
        try:
            llama = said([bench.llama_tool("llama-server"), "--version"])
        except Failure as failure:
            llama = str(failure)
    return {"date": time.strftime("%Y-%m-%d %H:%M:%S %Z"), "processor": processor(),
            "cores": str(len(bench.cores)), "system": f"{platform.system()} {platform.release()}",
            "dspark": said([args.dspark, "--version"]), "llama.cpp": llama, "rounds": str(args.runs),
            "command": "`" + shlex.join(["bench/compare_llamacpp", *argv]) + "`"}


def stop(*ignored):
    raise KeyboardInterrupt


def main(argv):
    args = arguments(argv)
    signal.signal(signal.SIGTERM, stop)
    bench = Bench(args, lambda text: print(text, file=sys.stderr, flush=True))
    result = {"title": "dspark beside llama.cpp" + (" (quick: the figures mean little)" if args.quick else ""),
              "header": header(bench, argv), "rows": [], "lines": bench.facts}

    def keep():
        result["interrupted"] = bench.interrupted
        result["commands"] = [f"# {line}\n" + "\n".join(list) for line, list in bench.commands.items()]
        result["best_drafts"] = bench.best_drafts
        save(args.out, result)

    for number in args.lines:
        name, measure = LINES[number]
        if bench.interrupted:
            result["rows"].append(unmeasured(number, name, "interrupted"))
            continue
        try:
            result["rows"] += measure(bench)
        except Failure as failure:
            result["rows"].append(unmeasured(number, name, str(failure)))
        except KeyboardInterrupt:
            bench.interrupted = True
            result["rows"].append(unmeasured(number, name, "interrupted"))
        keep()
    keep()
    print(f"{args.out}.md", file=sys.stderr)
    return 130 if bench.interrupted else 0
