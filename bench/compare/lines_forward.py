"""Lines about single forwards and prompts: decode, verify, prefill."""

from .table import entry, unmeasured
from .tools import compute_limit, limit, prefill_limit

AT_LEAST, AT_MOST = "at least", "at most"


def ratio_to(side, key, other, other_key=None):
    """A figure: one side's by another's."""
    return lambda r: r[side][key] / r[other][key if other_key is None else other_key]


def plain_decode(bench, line=1):
    """SmolLM2, one row at depth 16."""
    rows = []
    for kind, model, goal in (("Q4_1", bench.files.q4_1, 2.5), ("Q4_0", bench.files.q4_0, 1.7)):
        t = bench.turns(line, {
            "ours": lambda run: bench.verify(line, model(), 16, [1], bench.threads),
            "llama.cpp": lambda run: bench.llama_verify(line, model(), 16, [1], bench.threads),
            "machine": bench.machine_for(model, 16, bench.threads)})
        rows.append(entry(line, f"SmolLM2 {kind} decode, depth 16, {bench.threads} threads: llama.cpp / ours", t,
                          ratio_to("llama.cpp", 1, "ours"), (AT_LEAST, goal), lambda r: r["ours"][1],
                          lambda r: r["llama.cpp"][1], limit(bench, model, 16, 1), "ms"))
    return rows


def verify_depth_512(bench, line=2):
    """SmolLM2 Q4_1: rows of a draft, on one and two threads."""
    rows, depth, model = [], 512, bench.files.q4_1
    for threads in range(1, bench.threads + 1):
        t = bench.turns(line, {
            "ours": lambda run: bench.verify(line, model(), depth, [1, 4, 8, 16], threads),
            "llama.cpp": lambda run: bench.llama_verify(line, model(), depth, [1, 8, 16], threads),
            "machine": bench.machine_for(model, depth, threads)})
        on = f"{threads} thread{'s' * (threads > 1)}"
        for n in (8, 16):
            least = limit(bench, model, depth, n)
            rows.append(entry(line, f"SmolLM2 Q4_1, {n} rows, depth 512, {on}: ours / limit", t,
                              lambda r: r["ours"][n] / least(r), (AT_MOST, 1.5), lambda r: r["ours"][n],
                              lambda r: r["llama.cpp"][n], least, "ms"))
        rows.append(entry(line, f"SmolLM2 Q4_1, 8 rows, depth 512, {on}: ours / llama.cpp", t,
                          ratio_to("ours", 8, "llama.cpp"), (AT_MOST, 1 / 7), lambda r: r["ours"][8],
                          lambda r: r["llama.cpp"][8], limit(bench, model, depth, 8), "ms"))
        if threads == bench.threads:
            rows.append(entry(line, f"SmolLM2 Q4_1, depth 512, {on}: our 4 rows / our 1 row", t,
                              lambda r: r["ours"][4] / r["ours"][1], (AT_MOST, 1.3), lambda r: r["ours"][4],
                              None, limit(bench, model, depth, 4), "ms"))
    return rows


def forwards_beside(bench, line, name, model, depth, reps):
    """One and eight rows of a larger model by both programs."""
    return bench.turns(line, {
        "ours": lambda run: bench.verify(line, model(), depth, [1, 8], bench.threads, runs=reps),
        "llama.cpp": lambda run: bench.llama_verify(line, model(), depth, [1, 8], bench.threads, runs=reps),
        "machine": bench.machine_for(model, depth, bench.threads)})


def beside_rows(bench, line, name, model, depth, t):
    """Both programs next to each other, without a goal."""
    return [entry(line, f"{name}, {n} row{'s' * (n > 1)}: llama.cpp / ours", t, ratio_to("llama.cpp", n, "ours"),
                  None, lambda r: r["ours"][n], lambda r: r["llama.cpp"][n], limit(bench, model, depth, n), "ms")
            for n in (1, 8)]


def decode_share(bench, line, name, model, depth, t, goal):
    least = limit(bench, model, depth, 1)
    return entry(line, f"{name} decode: limit / ours", t, lambda r: least(r) / r["ours"][1], (AT_LEAST, goal),
                 lambda r: r["ours"][1], lambda r: r["llama.cpp"][1], least, "ms")


def shape_600m(bench, line=3):
    """A 0.6B model."""
    rows, depth = [], 512
    for kind in ("Q4_0", "Q4_1"):
        name = f"Qwen3-0.6B shape {kind}, depth 512"
        model = lambda: bench.files.random("qwen3-0.6b", kind)
        t = forwards_beside(bench, line, name, model, depth, bench.args.reps)
        least = limit(bench, model, depth, 8)
        rows.append(decode_share(bench, line, name, model, depth, t, 0.85))
        rows.append(entry(line, f"{name}, 8 rows: ours / limit", t, lambda r: r["ours"][8] / least(r), (AT_MOST, 1.5),
                          lambda r: r["ours"][8], lambda r: r["llama.cpp"][8], least, "ms"))
        rows += beside_rows(bench, line, name, model, depth, t)
    return rows


def shape_4b(bench, line=4):
    """A 4B model, which memory bounds."""
    name, depth = "Qwen3-4B shape Q4_0, depth 128", 128
    model = lambda: bench.files.random("qwen3-4b", "Q4_0")
    t = forwards_beside(bench, line, name, model, depth, bench.args.large_reps)
    compute = compute_limit(bench, model, depth, 8)
    rows = [decode_share(bench, line, name, model, depth, t, 0.95),
            entry(line, f"{name}, 8 rows: ours / the larger of 1.25 x one row and 1.35 x the compute limit", t,
                  lambda r: r["ours"][8] / max(1.25 * r["ours"][1], 1.35 * compute(r)), (AT_MOST, 1.0),
                  lambda r: r["ours"][8], lambda r: r["llama.cpp"][8], limit(bench, model, depth, 8), "ms")]
    return rows + beside_rows(bench, line, name, model, depth, t)


def prefill(bench, line=5):
    """Prompts. llama.cpp's Q4_0 is its fastest format, so both of ours stand beside it."""
    rows = []
    small = {"Q4_1": bench.files.q4_1, "Q4_0": bench.files.q4_0}
    large = {"Q4_0": lambda: bench.files.random("qwen3-0.6b", "Q4_0")}
    for name, models, goal in (("SmolLM2", small, 2.0), ("Qwen3-0.6B shape", large, 1.8)):
        for tokens in (512, 2048):
            options = ("-p", tokens, "-n", 0, "-r", bench.args.prefill_reps)
            sides = {f"ours {kind}": lambda run, model=model: bench.prefill(line, model(), tokens, bench.threads)
                     for kind, model in models.items()}
            sides["llama.cpp"] = lambda run: bench.llama_bench(line, models["Q4_0"](), *options, threads=bench.threads)
            sides["machine"] = bench.machine_for(models["Q4_0"], tokens, bench.threads)
            t = bench.turns(line, sides)
            for kind, model in models.items():
                ours = f"ours {kind}"
                rows.append(entry(line, f"{name} prefill of {tokens}: our {kind} / llama.cpp's Q4_0", t,
                                  lambda r: r[ours] / r["llama.cpp"], (AT_LEAST, goal), lambda r: r[ours],
                                  lambda r: r["llama.cpp"], prefill_limit(bench, model, tokens), "tokens/s"))
    return rows


def deep(bench, line=6):
    """SmolLM2 at depth 4096, where attention counts."""
    model, depth = bench.files.q4_1, 4096
    t = bench.turns(line, {
        "ours": lambda run: bench.verify(line, model(), depth, [1, 8], bench.threads),
        "llama.cpp": lambda run: bench.llama_verify(line, model(), depth, [1, 8], bench.threads),
        "machine": bench.machine_for(model, depth, bench.threads)})
    name = "SmolLM2 Q4_1, depth 4096"
    return [entry(line, f"{name}, 1 row: llama.cpp / ours", t, ratio_to("llama.cpp", 1, "ours"), (AT_LEAST, 3),
                  lambda r: r["ours"][1], lambda r: r["llama.cpp"][1], limit(bench, model, depth, 1), "ms"),
            entry(line, f"{name}, 8 rows: ours / llama.cpp", t, ratio_to("ours", 8, "llama.cpp"), (AT_MOST, 1 / 7),
                  lambda r: r["ours"][8], lambda r: r["llama.cpp"][8], limit(bench, model, depth, 8), "ms")]


def has_avx512():
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return "avx512f" in file.read()
    except OSError:
        return False


def avx2_only(bench, line=10):
    """Both without AVX-512."""
    goals = (("SmolLM2 Q4_1 decode, AVX2, depth 16: llama.cpp / ours", (AT_LEAST, 2)),
             ("SmolLM2 Q4_1, 8 rows, AVX2, depth 512: ours / llama.cpp", (AT_MOST, 1 / 4)))
    folder = bench.args.llama_avx2
    if not folder and has_avx512():
        reason = "the processor has AVX-512; --llama-avx2 is needed, the folder of a llama.cpp built for AVX2"
        return [unmeasured(line, what, reason, goal) for what, goal in goals]
    model = bench.files.q4_1
    sides = {}
    for depth, n in ((16, 1), (512, 8)):
        sides[f"ours {n}"] = lambda run, d=depth, n=n: bench.verify(line, model(), d, [n], bench.threads, cpu="avx2")
        sides[f"llama.cpp {n}"] = lambda run, d=depth, n=n: bench.llama_verify(line, model(), d, [n], bench.threads,
                                                                               folder)
    t = bench.turns(line, sides)
    return [entry(line, goals[0][0], t, ratio_to("llama.cpp 1", 1, "ours 1"), goals[0][1], lambda r: r["ours 1"][1],
                  lambda r: r["llama.cpp 1"][1], None, "ms"),
            entry(line, goals[1][0], t, ratio_to("ours 8", 8, "llama.cpp 8"), goals[1][1], lambda r: r["ours 8"][8],
                  lambda r: r["llama.cpp 8"][8], None, "ms")]
