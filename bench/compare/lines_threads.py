"""Lines about threads: a core that another program takes, and more cores than two."""

import contextlib
import ctypes
import signal
import subprocess

from . import Failure
from .process import terminate
from .table import entry, unmeasured
from .tools import limit

SET_PARENT_DEATH_SIGNAL = 1  # prctl


def die_with_parent():
    """In a child, before it becomes another program: killed when we end, however that happens."""
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


@contextlib.contextmanager
def busy_core(core):
    """A program that never sleeps on a core."""
    command = ["taskset", "-c", str(core), "sh", "-c", "while :; do :; done"]
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True,
                                 preexec_fn=die_with_parent)
    except OSError as error:
        raise Failure(f"taskset could not be started: {error.strerror}") from None
    try:
        yield child
        if child.poll() is not None:
            raise Failure("the program that takes a core ended early")
    finally:
        terminate(child)


def core_taken(bench, line=9):
    """Two threads, of which one shares its core, beside one thread that has a core."""
    if len(bench.cores) < 2:
        return [unmeasured(line, "one core taken", "there is only one core", ("at least", 0.9))]
    free, taken = bench.cores[:2]
    model, tokens = bench.files.q4_1, bench.args.decode_tokens
    sides = {}
    for threads, cores in ((2, f"{free},{taken}"), (1, f"{free}")):
        prefix = ["taskset", "-c", cores]
        sides[f"ours {threads}"] = lambda run, n=threads, p=prefix: bench.ours(
            line, "bench decode", model(), "--depth", 16, "--tokens", tokens, prefix=p, threads=n)["tokens_per_s"]
        sides[f"llama.cpp {threads}"] = lambda run, n=threads, p=prefix: bench.llama_bench(
            line, model(), "-p", 0, "-n", tokens // 2, "-r", 1, threads=n, prefix=p)
    with busy_core(taken) as loop:
        t = bench.turns(line, sides, pids=lambda: [loop.pid])
    name = f"SmolLM2 Q4_1 decode with core {taken} taken, 2 threads / 1 thread on the free core"
    return [entry(line, f"{name}: ours", t, lambda r: r["ours 2"] / r["ours 1"], ("at least", 0.9),
                  lambda r: r["ours 2"], lambda r: r["llama.cpp 2"], lambda r: r["ours 1"], "tokens/s",
                  "limit: our 1 thread"),
            entry(line, f"{name}: llama.cpp", t, lambda r: r["llama.cpp 2"] / r["llama.cpp 1"], None, None,
                  lambda r: r["llama.cpp 2"], lambda r: r["llama.cpp 1"], "tokens/s", "limit: its 1 thread")]


def more_threads(bench, line=11):
    """A 4B model on 1, 2, 4, 8 and 16 threads, and on as many as the program takes by itself."""
    depth, model = 128, lambda: bench.files.random("qwen3-4b", "Q4_0")
    counts = [n for n in (1, 2, 4, 8, 16) if n <= len(bench.cores)]
    sides = {f"ours {n}": lambda run, n=n: bench.verify(line, model(), depth, [1], n, runs=bench.args.large_reps)
             for n in counts}
    sides["ours default"] = lambda run: bench.verify(line, model(), depth, [1], None, runs=bench.args.large_reps)
    for n in counts:
        sides[f"llama.cpp {n}"] = lambda run, n=n: bench.llama_verify(line, model(), depth, [1], n,
                                                                      runs=bench.args.large_reps)
        sides[f"machine {n}"] = bench.machine_for(model, depth, n)
    t = bench.turns(line, sides)
    name = "Qwen3-4B shape Q4_0 decode, depth 128"

    def best(r, of):
        return min(r[f"ours {n}"][1] for n in of)

    rows = []
    for i, n in enumerate(counts):
        least, smaller = limit(bench, model, depth, 1, f"machine {n}"), counts[:i]
        rows.append(entry(
            line, f"{name}, {n} threads: ours / the best of fewer" if smaller else f"{name}, 1 thread: ours / limit", t,
            (lambda r: r[f"ours {n}"][1] / best(r, smaller)) if smaller else lambda r: r["ours 1"][1] / least(r),
            ("at most", 1.0) if smaller else None, lambda r: r[f"ours {n}"][1], lambda r: r[f"llama.cpp {n}"][1],
            least, "ms"))
    rows.append(entry(line, f"{name}, default threads: ours / the best count's", t,
                      lambda r: r["ours default"][1] / best(r, counts), ("at most", 1.05),
                      lambda r: r["ours default"][1], None, lambda r: best(r, counts), "ms", "limit: the best count's"))
    return rows
