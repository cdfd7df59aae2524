"""Each measured kernel beside its limit: what it reads at the bandwidth of where that lies, or what it computes at
the rate of its arithmetic. Kernels' times are the least of many, so limits are the best of some too."""

import json

from . import Failure
from .table import number, pipe_row

FLAGS = {"avx2": ("-mavx2", "-mfma"), "avx512": ("-march=native",)}
HEAD = ("kernel", "ISA", "shape", "rows", "bytes", "operations", "measured, µs", "limit, µs", "bound by",
        "share of the limit")


def parse_bench(text):
    """The lines of ds_check --bench --json: measured cases and what it had to skip."""
    cases, skipped = [], []
    for line in text.splitlines():
        try:
            item = json.loads(line)
        except ValueError:
            raise Failure(f"ds_check printed no JSON but {line[:80]!r}") from None
        if "bench" in item:
            cases.append(item)
        elif "skip" in item:
            skipped.append(f"{item['skip']} {item['isa']}")
    return cases, skipped


def bucket(size):
    """A size to measure the bandwidth of: the next of 4K, 6K, 8K, 12K, 16K ..."""
    step = 4096
    while size > step:
        if size <= step * 3 // 2:
            return step * 3 // 2
        step *= 2
    return step


def rate(case, machine):
    """Operations a second of the case's arithmetic, or None where it computes next to nothing."""
    codes = case.get("codes")
    if codes is None:
        return None
    if codes == "float":
        return machine["rates"]["fp32_fma"]
    if codes == "8 bits":
        return machine["rates"]["int8_dot"]
    # products of at most 6 bits are summed in 16 bits for a while, as those of 4 bits are
    one, four = machine["rates"]["u4_dot_1"], machine["rates"]["u4_dot_4"]
    if codes == "6 bits":
        return max(four, machine["rates"]["int8_dot"])
    return one if case["rows"] == 1 else max(one, four)


def beside_limit(case, machine):
    """The case with its limit in ns. machine: {"bandwidth": {bytes: bytes a second}, "rates": {kind: ops a second}}."""
    row = {key: case.get(key) for key in ("isa", "shape", "rows", "bytes", "ops", "ns")} | {"kernel": case["bench"]}
    memory = case["bytes"] / machine["bandwidth"][bucket(case["set"])] * 1e9 if case.get("bytes") else 0
    ops_s = rate(case, machine)
    compute = case["ops"] / ops_s * 1e9 if case.get("ops") and ops_s else 0
    if not memory and not compute:
        return row | {"limit_ns": None, "bound": None, "share": None}
    limit = max(memory, compute)
    return row | {"limit_ns": limit, "bound": "memory" if memory >= compute else "arithmetic",
                  "share": limit / case["ns"]}


def best_machine(outputs):
    """The best figures of some runs of bench/roofline on one thread."""
    bandwidth, rates = {}, {}
    for out in outputs:
        for item in out["bandwidth"]:
            bandwidth[item["bytes"]] = max(bandwidth.get(item["bytes"], 0), item["best_gb_s"] * 1e9)
        for item in out["rates"]:
            rates[item["kind"]] = max(rates.get(item["kind"], 0), item["best"] * 1e9)
    return {"bandwidth": bandwidth, "rates": rates}


def markdown(result):
    out = ["# Kernels and their limits", ""]
    out += [f"- **{name}:** {value}" for name, value in result["header"].items()]
    for isa, machine in result["machines"].items():
        rates = ", ".join(f"{kind} {number(value / 1e9)}" for kind, value in machine["rates"].items())
        speeds = ", ".join(f"{size >> 10} KiB {number(value / 1e9)}" for size, value in machine["bandwidth"].items())
        out += [f"- **{isa}, one thread:** {rates} Gop/s; GB/s of {speeds}"]
    out += ["", pipe_row(HEAD), pipe_row(["---"] * len(HEAD))]
    for r in result["rows"]:
        share = "-" if r["share"] is None else f"{100 * r['share']:.0f} %"
        limit = number(r["limit_ns"] and r["limit_ns"] / 1e3)
        out.append(pipe_row([r["kernel"], r["isa"], r["shape"], str(r["rows"]), number(r["bytes"]), number(r["ops"]),
                             number(r["ns"] / 1e3), limit, r["bound"] or "-", share]))
    if result["skipped"]:
        out += ["", "Not measured, for want of the instructions: " + ", ".join(result["skipped"]) + "."]
    return "\n".join(out) + "\n"
