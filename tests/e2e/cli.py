"""dspark generate and doctor: exit codes, sentences, JSON, streams, interrupts."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from program import PROGRAM, Golden, main, run, run_json

golden = Golden(sys.argv[2])
scratch = tempfile.TemporaryDirectory()
ANSWER = ["--prompt", "hello there", "--max-new-tokens", "24", "--ignore-eos"]


def made(name, content):
    path = os.path.join(scratch.name, name)
    with open(path, "wb") as file:
        file.write(content)
    return path


def folder_without(name):
    path = os.path.join(scratch.name, "without_" + name)
    shutil.copytree(golden.model, path)
    os.chmod(path, 0o755)
    os.remove(os.path.join(path, name))
    return path


def truncated_weights():
    path = os.path.join(scratch.name, "truncated")
    shutil.copytree(golden.model, path)
    weights = os.path.join(path, "model.safetensors")
    os.chmod(weights, 0o644)
    os.truncate(weights, os.path.getsize(weights) // 2)
    return path


def test_bad_inputs():
    """Each is refused with its exit code and one sentence that contains the given words."""
    gguf = made("cut.gguf", b"GGUF\x03\0\0\0\x05\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0")
    model = ["generate", "--model", golden.model]
    suite = ["bench", "generate", "--model", "/nowhere", "--drafter", "/nowhere", "--prompts"]
    for code, words, args in [
        (3, "nowhere", ["generate", "--model", "/nowhere", "--prompt", "x"]),
        (3, "cut.gguf", ["generate", "--model", gguf, "--prompt", "x"]),
        (3, "empty.gguf", ["generate", "--model", made("empty.gguf", b""), "--prompt", "x"]),
        (3, "config.json", ["generate", "--model", folder_without("config.json"), "--prompt", "x"]),
        (3, "tokenizer.json", ["generate", "--model", folder_without("tokenizer.json"), "--prompt", "x"]),
        (3, "model.safetensors", ["generate", "--model", truncated_weights(), "--prompt", "x"]),
        (3, "nowhere", [*model, "--drafter", "/nowhere", "--prompt", "x"]),
        (2, "", [*model, "--drafter", golden.drafter, "--prompt", "x"]),
        (2, "--model", ["generate", "--modle", golden.model, "--prompt", "x"]),
        (2, "--help", ["generate", "--zzzzzzzz"]),
        (2, "--model", ["generate", "--prompt", "x"]),
        (2, "--prompt", model),
        (2, "--prompt", [*model, "--prompt", "x", "--prompt-file", "-"]),
        (2, "--prompt", [*model, "hello"]),
        (2, "needs a value", [*model, "--prompt"]),
        (2, "needs a value", [*model, "--prompt", "--json"]),
        (2, "takes no value", [*model, "--json=yes"]),
        (2, "empty", [*model, "--prompt", ""]),
        (2, "UTF-8", [*model, "--prompt", b"\xff\xfe"]),
        (2, "absent.txt", [*model, "--prompt-file", "/absent.txt"]),
        (2, "0 to 100", [*model, "--prompt", "x", "--temperature", "-1"]),
        (2, "not 'warm'", [*model, "--prompt", "x", "--temperature", "warm"]),
        (2, "--temperature", [*model, "--prompt", "x", "--temperature", "nan"]),
        (2, "0 to 1", [*model, "--prompt", "x", "--top-p", "1.5"]),
        (2, "whole number", [*model, "--prompt", "x", "--top-k", "2.5"]),
        (2, "--max-new-tokens", [*model, "--prompt", "x", "--max-new-tokens", "0"]),
        (2, "--max-new-tokens", [*model, "--prompt", "x", "--max-new-tokens", "99999999999999999999"]),
        (2, "--threads", [*model, "--prompt", "x", "--threads", "-2"]),
        (2, "--seed", [*model, "--prompt", "x", "--seed", "-1"]),
        (2, "coupled|rejection", [*model, "--prompt", "x", "--accept", "maybe"]),
        (2, "auto|c|avx2", [*model, "--prompt", "x", "--cpu", "z80"]),
        (2, "drafter", [*model, "--prompt", "x", "--compare"]),
        (2, "drafter", [*model, "--prompt", "x", "--mode", "dspark"]),
        (2, "empty", [*model, "--prompt", "x", "--stop", ""]),
        (2, "context", [*model, "--prompt", "word " * 300, "--ctx", "64"]),
        (2, "context", [*model, "--prompt", "x", "--ctx", "10000000"]),
        (2, "1 to 256", [*model, "--prompt", "x", "--threads", "257"]),
        (2, "1 to 256", ["doctor", "--threads", "1024"]),
        (2, "--model needs a path", ["generate", "--model", "", "--prompt", "x"]),
        (2, "--drafter needs a path", [*model, "--drafter=", "--prompt", "x"]),
        (2, "--prompt-file needs a path", [*model, "--prompt-file", ""]),
        (2, "--text needs a path", ["bench", "quality", "--model", "/nowhere", "--text", ""]),
        (2, "absent.txt", ["bench", "quality", "--model", "/nowhere", "--text", "/absent.txt"]),
        (2, "--prompts needs a path", [*suite, ""]),
        (2, "empty entry", [*suite, "a,,b"]),
        (2, "empty entry", [*suite, ","]),
        (2, "absent.jsonl", [*suite, "/absent.jsonl"]),
        (2, "no prompts", [*suite, made("blank.jsonl", b"\n\n")]),
        (2, "bad.jsonl:1", [*suite, made("bad.jsonl", b"{}\n")]),
        (2, "--mode baseline", [*model, "--drafter", "/nowhere", "--prompt", "x", "--compare", "--mode", "baseline"]),
        (2, "64 MB", [*model, "--prompt-file", "/dev/zero"]),
        (2, "--stop", [*model, "--prompt", "x", "--stop", b"\xff"]),
        (2, "--system", [*model, "--prompt", "x", "--system", b"\xff"]),
        (2, "'a\\x0ab\\x1b[1m'", [*model, "--prompt", "x", "--top-k", "a\nb\x1b[1m"]),
        (2, "'" + 80 * "w" + "...'", [*model, "--prompt", "x", "--mode", 500 * "w"]),
        (2, "unknown command", ["serve-me"]),
        (2, "generate", ["generat"]),
        (2, "unknown command", ["bench", "nothing"]),
        (2, "--prompts", ["bench", "generate", "--model", golden.target, "--drafter", golden.drafter]),
        (2, "--model", ["doctor", "--drafter", golden.drafter]),
    ]:
        result = subprocess.run([PROGRAM, *args], capture_output=True, timeout=60)
        error = result.stderr.decode()
        what = f"{args}: exit {result.returncode}, {error!r}"
        assert result.returncode == code, what
        assert result.stdout == b"", what
        assert error.startswith("dspark: ") and error.count("\n") == 1 and error.endswith("\n"), what
        assert words in error, what
        assert len(error) > 20, what


def test_prompt_too_long_names_both_numbers():
    error = run("generate", "--model", golden.model, "--prompt", "word " * 300, "--ctx", "64").stderr.decode()
    assert len(re.findall(r"\d+", error)) >= 2 and "64" in error, error


def test_version_and_help():
    assert re.fullmatch(rb"dspark \d+\.\d+\.\d+\n", run("--version").stdout)
    assert b"generate" in run("--help").stdout
    assert run().returncode == 0
    manual = run("--dump-man").stdout.decode().replace("\\-", "-")
    for command in (["generate"], ["bench", "decode"], ["bench", "verify"], ["bench", "prefill"],
                    ["bench", "generate"], ["bench", "quality"], ["doctor"]):
        result = run(*command, "--help")
        assert result.returncode == 0 and not result.stderr
        part = run("--dump-man", *command).stdout.decode().replace("\\-", "-")
        flags = re.findall(r"^  (--[a-z-]+)", result.stdout.decode(), re.M)
        assert len(flags) >= 4
        assert all(f"fB{flag}\\" in part and f"fB{flag}\\" in manual for flag in flags), command
        assert all(len(line) <= 100 for line in result.stdout.decode().splitlines())


def test_json_schema():
    result = run_json("generate", "--model", golden.target, "--drafter", golden.drafter, *ANSWER)
    for key, kind in {"text": str, "token_ids": list, "prompt_tokens": int, "finish_reason": str, "rounds": list,
                      "prefill_s": float, "decode_s": float, "tokens_per_s": float, "e2e_tokens_per_s": float,
                      "tokens_per_round": float, "model_sha": str, "threads": int, "isa": str,
                      "version": str}.items():
        assert isinstance(result[key], kind), (key, result[key])
    assert len(result["token_ids"]) == 24 and result["finish_reason"] == "length"
    assert re.fullmatch("[0-9a-f]{64}", result["model_sha"])
    assert sum(r[2] for r in result["rounds"]) == 23
    for drafted, accepted, committed, source in result["rounds"]:
        assert 0 <= accepted <= drafted and 1 <= committed <= accepted + 1
        assert source in ("drafter", "plain", "lookup")
    assert abs(result["tokens_per_round"] - 23 / len(result["rounds"])) < 1e-6


def test_same_tokens_with_and_without_drafter():
    pair = ["generate", "--model", golden.target, "--drafter", golden.drafter, *ANSWER]
    for settings in ([], ["--temperature", "0.8", "--seed", "7"], ["--temperature", "1", "--top-p", "0.9", "--top-k", "20"]):
        plain = run_json(*pair, *settings, "--mode", "baseline")
        assert all(r[0] == 0 for r in plain["rounds"])
        for more in ([], ["--max-draft", "2"], ["--threads", "1"], ["--confidence-threshold", "0.5"]):
            spec = run_json(*pair, *settings, *more)
            assert spec["token_ids"] == plain["token_ids"], (settings, more)
            assert spec["text"] == plain["text"]
    rejection = run_json(*pair, "--temperature", "0.8", "--accept", "rejection")
    assert len(rejection["token_ids"]) == 24


def test_greedy_golden_ids():
    """The golden prompt's ids are not text; its own greedy ids are checked by the golden tests. Here: the same
    answer for the prompt as text, streamed or not."""
    args = ["generate", "--model", golden.model, *ANSWER]
    text = run_json(*args)["text"]
    assert run(*args).stdout.decode() == text + "\n"
    assert run(*args, "--no-stream").stdout.decode() == text + "\n"


def test_stop_strings():
    """Every stop that occurs in the answer cuts it there, wherever tokens end."""
    args = ["generate", "--model", golden.target, "--drafter", golden.drafter, *ANSWER]
    full = run_json(*args)
    text = full["text"]
    assert len(text) > 8
    for start in range(1, min(len(text) - 3, 12), 3):
        stop = text[start:start + 3]
        result = run_json(*args, "--stop", "\x01never", "--stop", stop)
        assert result["text"] == text[:text.index(stop)], (stop, result["text"], text)
        assert result["finish_reason"] == "stop"
        plain = run_json(*args, "--stop", "\x01never", "--stop", stop, "--mode", "baseline")
        assert result["token_ids"] == plain["token_ids"] == full["token_ids"][:len(plain["token_ids"])], stop
        for one in (result, plain):
            assert len(one["token_ids"]) == one["generated_tokens"], stop
            assert sum(r[2] for r in one["rounds"]) == one["generated_tokens"] - 1, stop
            if one["decode_s"] > 0:
                speed = (one["generated_tokens"] - 1) / one["decode_s"]
                assert abs(one["tokens_per_s"] - speed) < 1e-5 * speed, stop
        assert run(*args, "--stop", stop).stdout.decode() == result["text"] + ("\n" if result["text"] else "")


def test_prompt_file():
    args = ["generate", "--model", golden.model, "--max-new-tokens", "8", "--ignore-eos"]
    direct = run_json(*args, "--prompt", "from a file")
    piped = run_json(*args, "--prompt-file", "-", stdin=b"from a file")
    file = run_json(*args, "--prompt-file", made("prompt.txt", b"from a file"))
    assert direct["token_ids"] == piped["token_ids"] == file["token_ids"]
    assert run(*args, "--prompt-file", "-", stdin=b"").returncode == 2
    assert run(*args, "--prompt-file", "-", stdin=b"a\xc3").returncode == 2
    assert run(*args, "--prompt-file", "-", stdin=b"a\0b").returncode == 2


def test_template_and_system():
    args = ["generate", "--model", golden.model, "--prompt", "hi", "--max-new-tokens", "2", "--ignore-eos"]
    chat, raw = run_json(*args), run_json(*args, "--no-chat-template")
    system = run_json(*args, "--system", "be brief")
    assert raw["prompt_tokens"] < chat["prompt_tokens"] < system["prompt_tokens"]
    spelled = run_json("generate", "--model", golden.model, "--max-new-tokens", "2", "--ignore-eos", "--no-chat-template",
                       "--prompt", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert spelled["token_ids"] == chat["token_ids"] and spelled["prompt_tokens"] == chat["prompt_tokens"]


def test_compare():
    pair = ["generate", "--model", golden.target, "--drafter", golden.drafter, *ANSWER, "--compare"]
    table = run(*pair)
    assert table.returncode == 0
    text = table.stdout.decode()
    assert "identical: yes" in text and "speedup" in text and "tokens per round" in text
    result = run_json(*pair)
    assert result["identical"] is True
    assert result["plain"]["token_ids"] == result["spec"]["token_ids"]
    for key in ("speedup", "plain_tokens_per_s", "spec_tokens_per_s", "tokens_per_round", "first_token_s",
                "prefill_tokens_per_s"):
        assert result[key] > 0, key
    assert all(0 <= share <= 1 for share in result["acceptance_by_position"])
    whole = run(*pair, "--no-stream").stdout.decode()
    assert f"--- plain ---\n{result['plain']['text']}\n" in whole, whole
    assert f"--- speculative ---\n{result['spec']['text']}\n" in whole, whole
    assert "identical: yes" in whole


def long_answer(*more, **options):
    return subprocess.Popen([PROGRAM, "generate", "--model", golden.model, "--prompt", "go on", "--ignore-eos",
                             "--cpu", "c", "--threads", "1", "--max-new-tokens", "4000", *more],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_interrupt_streaming():
    process = long_answer()
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, error = process.communicate(timeout=30)
    assert process.returncode == 130, process.returncode
    assert (first + rest).endswith(b"\n") and error == b"", error
    (first + rest).decode() # whole characters


def test_interrupt_json():
    process = long_answer("--json")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130, process.returncode
    if out: # the interrupt came after loading
        result = json.loads(out)
        assert result["finish_reason"] == "cancelled" and len(result["token_ids"]) < 4000


def test_interrupt_compare_json():
    process = subprocess.Popen([PROGRAM, "generate", "--model", golden.target, "--drafter", golden.drafter, "--prompt",
                                "go on", "--ignore-eos", "--cpu", "c", "--threads", "1", "--max-new-tokens", "4000",
                                "--compare", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    if process.returncode == 0: # it was faster
        return
    assert process.returncode == 130, process.returncode
    if out: # the interrupt came after loading
        result = json.loads(out)
        assert result["spec"]["finish_reason"] == "cancelled" and result["identical"] is False


def test_closed_output():
    process = long_answer()
    process.stdout.read(1)
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(timeout=30) == 0 and error == b"", (process.returncode, error)


def test_full_output():
    if not os.path.exists("/dev/full"):
        return
    answer = ["generate", "--model", golden.model, *ANSWER]
    pair = ["generate", "--model", golden.target, "--drafter", golden.drafter, *ANSWER, "--compare"]
    decode = ["bench", "decode", "--model", golden.model, "--depth", "8", "--tokens", "4"]
    for args in (answer, [*answer, "--json"], [*answer, "--no-stream"], pair, [*pair, "--no-stream"], decode, ["doctor"],
                 ["--version"], ["--help"], ["generate", "--help"], ["--dump-man"], ["--dump-man", "--markdown"]):
        with open("/dev/full", "wb") as full:
            result = subprocess.run([PROGRAM, *args], stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert result.returncode == 1, (args, result)
        assert result.stderr.startswith(b"dspark: cannot write the result: ") and result.stderr.count(b"\n") == 1, result
        closed = subprocess.run([PROGRAM, *args], preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE, timeout=60)
        assert closed.returncode == 1 and b"cannot write the result" in closed.stderr, (args, closed)


def test_reader_gone():
    for args in (["--version"], ["--dump-man"], ["doctor"]):
        read, write = os.pipe()
        os.close(read)
        result = subprocess.run([PROGRAM, *args], stdout=write, stderr=subprocess.PIPE, timeout=60)
        os.close(write)
        assert result.returncode == 0 and result.stderr == b"", (args, result)


def test_doctor():
    assert "cores" in run("doctor").stdout.decode()
    machine = run_json("doctor")["machine"]
    assert machine["cores"] >= 1 and machine["isa"] in ("c", "avx2", "avx512", "neon")
    report = run_json("doctor", "--model", golden.target, "--drafter", golden.drafter)
    assert report["model"]["family"] == "qwen3" and report["model"]["drafter"] == "dspark"
    assert {row["class"] for row in report["matrices"]} >= {"attention", "mlp", "embedding"}
    assert "memory" in run("doctor", "--model", golden.target).stdout.decode()


main(globals())
