"""dspark bench: the shape of every result, on models too small for the numbers to mean anything."""

import os
import sys
import tempfile

from program import Golden, main, run, run_json

golden = Golden(sys.argv[2])
scratch = tempfile.TemporaryDirectory()


def made(name, text):
    path = os.path.join(scratch.name, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def signed(result):
    assert len(result["model_sha"]) == 64 and result["threads"] >= 1 and result["isa"] and result["version"]
    return result


def test_decode():
    for more in ([], ["--drafter", golden.drafter]):
        result = signed(run_json("bench", "decode", "--model", golden.target, "--depth", 16, "--tokens", 8, *more))
        assert abs(result["ms_per_token"] * result["tokens_per_s"] - 1000) < 1


def check_profile(profile, parts, ops):
    assert {row["part"] for row in profile} == parts | {"host"}
    assert ops <= {row["op"] for row in profile}
    assert abs(sum(row["share"] for row in profile) - 1) < 1e-6
    for row in profile:
        assert row["calls"] > 0 and row["ms"] > -1e-3 and row["wait_ms"] <= row["ms"] + 1e-6
        assert ("gb_per_s" in row) == ("mb" in row)
    assert all(row["mb"] > 0 for row in profile if row["op"] in ("qkv", "head"))


def test_profile():
    ops = {"embed", "qkv", "heads", "attention", "o", "gate+up", "down", "head"}
    plain = ["bench", "decode", "--model", golden.target, "--depth", 16, "--tokens", 8, "--profile"]
    check_profile(run_json(*plain)["profile"], {"target"}, ops)
    check_profile(run_json(*plain, "--drafter", golden.drafter)["profile"], {"target", "draft"}, ops | {"fc"})
    result = run_json("bench", "verify", "--model", golden.model, "--rows", "1,3", "--runs", 2, "--profile")
    for row in result["rows"].values():
        check_profile(row["profile"], {"target"}, ops)
    check_profile(run_json("bench", "prefill", "--model", golden.model, "--tokens", 64, "--profile")["profile"],
                  {"target"}, ops)
    shown = run("bench", "decode", "--model", golden.target, "--depth", 16, "--tokens", 8, "--profile")
    assert b"gate+up" in shown.stdout and b"GB/s" in shown.stdout


def test_verify():
    result = signed(run_json("bench", "verify", "--model", golden.model, "--depth", 20, "--rows", "1,3,8", "--runs", 3))
    assert list(result["rows"]) == ["1", "3", "8"]
    assert all(0 < row["ms_min"] <= row["ms"] for row in result["rows"].values())


def test_prefill():
    assert signed(run_json("bench", "prefill", "--model", golden.model, "--tokens", 700))["tokens_per_s"] > 0


def test_generate():
    one = made("one.jsonl", '{"prompt": "first"}\n\n{"prompt": "second"}\n{"prompt": "third"}\n')
    two = made("two.jsonl", '{"prompt": "other"}')
    args = ["bench", "generate", "--model", golden.target, "--drafter", golden.drafter, "--max-new-tokens", 16]
    for files in (["--prompts", f"{one},{two}"], ["--prompts", one, "--prompts", two]):
        result = signed(run_json(*args, *files, "--limit", 2))
        assert list(result["sets"]) == ["one", "two"]
        assert [s["prompts"] for s in result["sets"].values()] == [2, 1]
        for row in (*result["sets"].values(), result["total"]):
            assert row["identical"] is True
            assert row["plain_tokens_per_s"] > 0 and row["spec_tokens_per_s"] > 0 and row["tokens_per_round"] >= 1
    bad = made("bad.jsonl", '{"prompt": "a"}\n{"text": "b"}\n')
    refused = run(*args, "--prompts", bad)
    assert refused.returncode == 2 and b"bad.jsonl:2" in refused.stderr


def test_quality():
    text = made("text.txt", "The quick brown fox jumps over the lazy dog. " * 40)
    result = signed(run_json("bench", "quality", "--model", golden.model, "--text", text, "--window", 64))
    assert result["tokens"] > 0 and result["tokens"] % 32 == 0
    assert result["ppl"] > 1 and result["ppl_exact"] > 1 and -1e-6 <= result["kl"] < 0.1 and result["top1"] > 0.8
    short = run("bench", "quality", "--model", golden.model, "--text", made("short.txt", "hi"))
    assert short.returncode == 2


main(globals())
