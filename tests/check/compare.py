#!/usr/bin/env python3
"""The parts of bench/compare that need no other program: limits, intervals, turns, tables, commands."""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(sys.argv[1]).resolve()
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests")]
import functions  # noqa: E402
from compare import Failure, files, kernels, limits, process, stats, table  # noqa: E402
from compare import lines_threads, main  # noqa: E402
from compare.turns import Turns  # noqa: E402

scratch = tempfile.TemporaryDirectory()


def near(a, b):
    assert abs(a - b) <= 1e-9 * max(abs(a), abs(b)), (a, b)


def fails(call, *words):
    try:
        call()
    except Failure as failure:
        text = str(failure)
        assert "\n" not in text and all(word in text for word in words), text
        return text
    raise AssertionError("no failure")


def test_limits():
    shape = limits.Shape(weight_bytes=100_000_000, weight_macs=150_000_000, head_macs=30_000_000, kv_bytes=20_000,
                         attention_macs=40_000)
    machine = limits.Machine(bandwidth=50e9, int8=400e9, fp32=100e9, threads=2)
    near(limits.memory_ms(shape, machine, 500), (100e6 + 500 * 20e3) / 50e9 * 1e3)
    near(limits.compute_ms(shape, machine, 500, 8), (2 * 150e6 * 8 / 800e9 + 2 * 40e3 * 500 * 8 / 200e9) * 1e3)
    near(limits.compute_ms(shape, machine, 0, 8, 1), 2 * (120e6 * 8 + 30e6) / 800e9 * 1e3)
    near(limits.limit_ms(shape, machine, 500, 1), 2.2)  # memory
    near(limits.limit_ms(shape, machine, 500, 16), 9.2)  # arithmetic: 6 + 3.2
    near(limits.prefill_limit(shape, machine, 512), 512 / limits.compute_ms(shape, machine, 256, 512, 1) * 1e3)


def test_gguf():
    try:
        import gguf
        import numpy
    except ImportError:
        fails(lambda: limits.gguf_shape("x.gguf"), "gguf", "not installed")
        print("skip: the package gguf is not installed")
        return
    path = os.path.join(scratch.name, "tiny.gguf")
    for tied in (True, False):
        out = gguf.GGUFWriter(path, "llama")
        out.add_block_count(2)
        out.add_embedding_length(32)
        out.add_head_count(4)
        out.add_head_count_kv(2)
        for name, rows in [("token_embd", 10), ("blk.0.ffn_up", 6)] + ([] if tied else [("output", 10)]):
            out.add_tensor(name + ".weight", numpy.ones((rows, 32), numpy.float32))
        out.add_tensor("output_norm.weight", numpy.ones(32, numpy.float32))
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
        out.close()
        got = limits.gguf_shape(path)  # one of embedding and head counts, whichever the head is
        assert got == limits.Shape((10 + 6 + 1) * 32 * 4, 16 * 32, 10 * 32, 2 * 2 * 8 * 2 * 2, 2 * 4 * 8 * 2), got
    fails(lambda: limits.gguf_shape(os.path.join(scratch.name, "none.gguf")), "none.gguf")


def test_stats():
    assert stats.interval([3.0]) == (3.0, 3.0)
    values = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 5.0]
    low, high = stats.interval(values)
    assert low <= 1.01 <= high < 5 and stats.interval(values) == (low, high)
    sure = {"median": 2.6, "low": 2.51, "high": 2.7}
    assert stats.verdict(sure, ("at least", 2.5)) == {"reached": True, "sure": True}
    assert stats.verdict(sure, ("at least", 2.55)) == {"reached": True, "sure": False}
    assert stats.verdict(sure, ("at most", 2.5)) == {"reached": False, "sure": True}
    assert stats.verdict(sure, ("at most", 2.65)) == {"reached": True, "sure": False}


def test_turns():
    order = []

    def side(name, fails_in=None):
        def call(run):
            order.append(name)
            if run == fails_in:
                raise Failure(f"{name} is broken")
            return 10.0 * (run + 1) if name == "a" else float("nan") if name == "c" and run == 0 else 2.0
        return call

    t = Turns({"a": side("a"), "b": side("b", 1), "c": side("c")}).play(3)
    assert order == ["a", "b", "c", "b", "c", "a", "c", "a", "b"], order  # rotated
    assert t.values(lambda r: r["a"]) == [10, 20, 30]
    assert t.values(lambda r: r["a"] / r["b"]) == [5, 15]  # rounds with both
    assert t.errors == {"b": "b is broken"}
    assert t.values(lambda r: r["a"] / r["c"]) == [10, 15]  # what is no number is left out
    assert "b is broken" in fails(lambda: Turns({"b": side("b", 0)}).play(1).values(lambda r: r["b"]))

    def never(run):
        order.append("never")
        raise Failure("never works")

    order.clear()
    Turns({"never": never}).play(5)
    assert order == ["never"] * 2, order  # then it is given up

    def interrupts(run):
        if run:
            raise KeyboardInterrupt
        return 1.0

    t = Turns({"a": side("a"), "i": interrupts}).play(5)
    assert t.interrupted and len(t.values(lambda r: r["i"])) == 1


def test_table():
    t = Turns({"ours": lambda run: 2.0, "peer": lambda run: 5.0 + run}).play(3)
    good = table.entry(1, "a | b", t, lambda r: r["peer"] / r["ours"], ("at least", 2.5), lambda r: r["ours"],
                       lambda r: r["peer"], lambda r: r["none"], "ms")
    assert good["reached"] and good["ratio"]["median"] == 3 and good["ratios"] == [2.5, 3, 3.5]
    assert good["limit"] is None and "none" in good["lacks"]["limit"]
    lacking = table.entry(2, "lacking", t, lambda r: r["none"], ("at most", 1 / 7))
    shown = table.cells(good)
    assert shown[2:] == ["2 ms", "6 ms", "-", "3 (2.5-3.5)", "≥ 2.5", "yes"], shown
    assert table.cells(lacking)[5:] == ["not measured: none was not measured", "≤ 0.143", "not measured"]
    result = {"title": "t", "header": {"date": "today"}, "rows": [good, lacking], "lines": {"1": {"rounds": 3}},
              "commands": ["x"], "odd": [float("nan"), {1: float("inf")}]}
    prefix = os.path.join(scratch.name, "out")
    table.save(prefix, result)
    with open(prefix + ".md", encoding="utf-8") as file:
        text = file.read()
    rows = [line for line in text.splitlines() if line.startswith("| 1 |") or line.startswith("| 2 |")]
    assert "a \\| b" in rows[0] and len(rows) == 3
    with open(prefix + ".json", encoding="utf-8") as file:
        kept = json.load(file)
    assert kept["odd"] == [None, {"1": None}] and kept["rows"][1]["not_measured"]
    assert table.number(0.14286) == "0.143" and table.number(1234.5) == "1234" and table.number(None) == "-"


def test_process():
    assert process.run_json([sys.executable, "-c", "print('[1]')"], 20) == [1]
    fails(lambda: process.run(["sh", "-c", "echo bad >&2; exit 3"], 20), "ended with 3", "bad")
    fails(lambda: process.run_json(["echo", "hello"], 20), "did not print JSON", "hello")
    fails(lambda: process.run([os.path.join(scratch.name, "none")], 20), "could not be started")
    begin = time.monotonic()
    fails(lambda: process.run(["sh", "-c", "sleep 100 & sleep 100"], 0.2), "took longer")
    assert time.monotonic() - begin < 15


def test_busy_core():
    if not shutil.which("taskset"):
        print("skip: no taskset")
        return
    with contextlib.suppress(ZeroDivisionError):
        with lines_threads.busy_core(min(os.sched_getaffinity(0))) as child:
            assert child.poll() is None
            1 / 0
    assert child.poll() is not None


def test_files():
    path = os.path.join(scratch.name, "p.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"prompt": "a"}\n\n{"prompt": "b"}\n')
    assert files.read_prompts(path) == ["a", "b"]
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"text": "c"}\n')
    fails(lambda: files.read_prompts(path), "p.jsonl")
    assert files.evenly(list("abcdefgh"), 3) == ["a", "c", "f"] and files.evenly([1], 3) == [1]


def test_arguments():
    with contextlib.redirect_stderr(open(os.devnull, "w", encoding="utf-8")):
        for bad in (["--rows", "0"], ["--rows", "x"], ["--runs", "0"], ["--dspark", "/none"]):
            try:
                main.arguments(["--model", __file__, "--dspark", sys.executable, *bad])
            except SystemExit as error:
                assert error.code == 2
            else:
                raise AssertionError(bad)
    args = main.arguments(["--model", __file__, "--dspark", sys.executable, "--rows", "2,11", "--quick"])
    assert args.lines == [2, 11] and args.runs == main.QUICK["runs"]
    assert main.arguments(["--model", __file__, "--dspark", sys.executable, "--runs", "3"]).runs == 3


def test_kernels():
    cases, skipped = kernels.parse_bench(
        '{"skip":"qmm","isa":"avx512"}\n'
        '{"bench":"qmm","isa":"avx2","shape":"s","rows":8,"ns":100,"bytes":1000,"set":5000,"ops":4000,"codes":"4 bits"}\n'
        '{"bench":"turn","isa":"avx2","shape":"s","rows":1,"ns":100}\n{"checks":1,"failures":0}\n')
    assert skipped == ["qmm avx512"] and len(cases) == 2
    assert [kernels.bucket(n) for n in (1, 4096, 4097, 6145, 8192)] == [4096, 4096, 6144, 8192, 8192]
    machine = kernels.best_machine([{"bandwidth": [{"bytes": 6144, "best_gb_s": best}],
                                     "rates": [{"kind": k, "best": r} for k, r in
                                               (("u4_dot_1", 40), ("u4_dot_4", 50), ("int8_dot", 60), ("fp32_fma", 9))]}
                                    for best in (20, 10)])
    row = kernels.beside_limit(cases[0], machine)  # 1000 B at 20 GB/s: 50 ns; 4000 at 50 Gop/s: 80 ns
    near(row["share"], 0.8)
    assert row["bound"] == "arithmetic" and kernels.beside_limit(cases[1], machine)["share"] is None
    assert "80 %" in kernels.markdown({"header": {}, "machines": {"avx2": machine}, "rows": [row], "skipped": skipped})


def test_roofline():
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        flags = file.read()
    if " avx2" not in flags or " fma" not in flags:
        print("skip: no AVX2")
        return
    program = files.compile_roofline(scratch.name, ("-mavx2", "-mfma", "-Wall", "-Wextra", "-Werror"))
    got = process.run_json([program, "--threads", "1,2", "--sizes", "64K,1M", "--seconds", "0.001", "--repeats", 3], 60)
    assert [(b["bytes"], b["threads"]) for b in got["bandwidth"]] == [(65536, 1), (65536, 2), (1048576, 1), (1048576, 2)]
    assert len(got["rates"]) == 8 and all(r["gop_s_per_core"] > 0 for r in got["rates"])
    bad = subprocess.run([program, "--sizes", "0"], capture_output=True, text=True, timeout=20)
    assert bad.returncode == 2 and "usage" in bad.stderr


functions.main(globals())
