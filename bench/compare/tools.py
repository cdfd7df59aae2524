"""Both programs and the machine, each as a function that measures one thing and returns numbers."""

import os
import shlex
import statistics

from . import Failure, limits
from .files import Files
from .process import run_json
from .turns import Turns

MIB = 1 << 20
LARGEST_ARRAY = 512 * MIB  # beyond a few times the largest cache the bandwidth no longer changes


class Bench:
    """What a run of the comparison has: arguments, files, and what was found so far."""

    def __init__(self, args, progress=lambda text: None):
        self.args, self.progress = args, progress
        self.files = Files(args, self.llama_tool, args.timeout)
        self.cores = sorted(os.sched_getaffinity(0))
        self.threads = min(2, len(self.cores))
        self.interrupted, self.facts, self.commands, self._shapes = False, {}, {}, {}
        self.best_drafts = {}

    # --- rounds ---

    def turns(self, line, sides, runs=None, pids=lambda: ()):
        """Plays and notes what the reader of the table wants to know about it."""
        turns = Turns(sides)
        turns.interrupted = self.interrupted
        if not self.interrupted:
            begin = os.times().elapsed
            turns.play(runs or self.args.runs, pids, lambda text: self.progress(f"line {line}, {text}"),
                       self.args.wait)
            self.interrupted = turns.interrupted
            self._note(line, turns, os.times().elapsed - begin)
        return turns

    def _note(self, line, turns, seconds):
        fact = self.facts.setdefault(str(line), {"rounds": 0, "seconds": 0, "raw": []})
        fact["rounds"] += len(turns.rounds)
        fact["seconds"] = round(fact["seconds"] + seconds, 1)
        fact["raw"] += [{"rounds": turns.rounds, "errors": turns.errors}]
        if turns.others:
            fact["others"] = f"{statistics.median(turns.others):.2f}, {max(turns.others):.2f}"
        for name in turns.sides:
            found = [r[name] for r in turns.rounds if name.startswith("machine") and name in r]
            if found:
                m = {key: statistics.median(f[key] for f in found) for key in ("bandwidth", "int8", "fp32")}
                n = found[0]["threads"]
                said = (f"{n} thread{'s' * (n > 1)}: {m['bandwidth'] / 1e9:.1f} GB/s, int8 "
                        f"{m['int8'] / 1e9:.0f} and fp32 {m['fp32'] / 1e9:.0f} Gop/s a core")
                fact["machine"] = f"{fact['machine']}; {said}" if "machine" in fact else said

    def measured(self, line, command):
        """Runs a command and keeps it for the report."""
        shown = shlex.join(map(str, command))
        kept = self.commands.setdefault(str(line), [])
        if shown not in kept:
            kept.append(shown)
        return run_json(command, self.args.timeout)

    # --- our program ---

    def ours(self, line, what, model, *options, prefix=(), threads=None, cpu=None):
        command = [*prefix, self.args.dspark, *what.split(), "--model", model, *options]
        if threads:
            command += ["--threads", threads]
        if cpu:
            command += ["--cpu", cpu]
        return self.measured(line, [*command, "--json"])

    def verify(self, line, model, depth, rows, threads, cpu=None, runs=None):
        """Milliseconds of a forward by its rows."""
        got = self.ours(line, "bench verify", model, "--depth", depth, "--rows", ",".join(map(str, rows)), "--runs",
                        runs or self.args.reps, threads=threads, cpu=cpu)
        return {n: got["rows"][str(n)]["ms"] for n in rows} | {"threads": got["threads"]}

    def prefill(self, line, model, tokens, threads):
        return self.ours(line, "bench prefill", model, "--tokens", tokens, "--runs", self.args.prefill_reps,
                         threads=threads)["tokens_per_s"]

    def drafter_bytes(self, model):
        got = self.ours("setup", "doctor", model, "--drafter", self.args.drafter)
        return got["model"]["drafter_bytes"]

    # --- llama.cpp ---

    def llama_tool(self, name, folder=None):
        folder = folder or self.args.llama
        if not folder:
            raise Failure(f"--llama is needed, the folder of {name}")
        path = os.path.join(folder, name)
        if not os.access(path, os.X_OK):
            raise Failure(f"there is no program {path}")
        return path

    def llama_verify(self, line, model, depth, rows, threads, folder=None, runs=None):
        got = self.measured(line, [self.llama_tool("verify_curve", folder), "-m", model, "-t", threads, "-d", depth,
                                   "-M", ",".join(map(str, rows)), "-r", runs or self.args.reps])
        return {v["M"]: v["ms"] for v in got["verify"]}

    def llama_bench(self, line, model, *options, threads, prefix=()):
        """Tokens a second."""
        got = self.measured(line, [*prefix, self.llama_tool("llama-bench"), "-m", model, "-t", threads, *options,
                                   "-o", "json"])
        return got[0]["avg_ts"]

    # --- the machine ---

    def machine(self, size, threads):
        """Bandwidth for so many bytes, and rates, as a dict of the fields of limits.Machine."""
        size = min(LARGEST_ARRAY, -(-int(size) // MIB) * MIB)
        got = self.measured("machine", [self.files.roofline(), "--threads", threads, "--sizes", f"{size // MIB}M",
                                        "--seconds", self.args.roofline_seconds, "--repeats", 3])
        rates = {r["kind"]: r["gop_s_per_core"] * 1e9 for r in got["rates"]}
        return {"bandwidth": got["bandwidth"][0]["gb_s"] * 1e9, "int8": rates["u4_dot_4"],
                "fp32": rates["fp32_fma"], "threads": threads}

    def shape(self, model):
        if model not in self._shapes:
            self._shapes[model] = limits.gguf_shape(model)
        return self._shapes[model]

    def machine_for(self, model, depth, threads):
        """A side that measures the machine for forwards of a model."""
        return lambda run: self.machine(limits.bytes_read(self.shape(model()), depth), threads)


def limit(bench, model, depth, rows, side="machine"):
    """A figure of a round: the limit of a forward in that round."""
    return lambda r: limits.limit_ms(bench.shape(model()), limits.Machine(**r[side]), depth, rows)


def compute_limit(bench, model, depth, rows, side="machine"):
    return lambda r: limits.compute_ms(bench.shape(model()), limits.Machine(**r[side]), depth, rows)


def prefill_limit(bench, model, tokens, side="machine"):
    return lambda r: limits.prefill_limit(bench.shape(model()), limits.Machine(**r[side]), tokens)
