"""--weights-cache: the same ids whatever its folder holds, and one line where something is wrong with it."""

import os
import shutil
import subprocess
import sys
import tempfile

from program import PROGRAM, Golden, main, run, run_json

golden = Golden(sys.argv[2])
scratch = tempfile.TemporaryDirectory()
ANSWER = ["--prompt", "hello there", "--max-new-tokens", "24", "--ignore-eos"]
PAIR = ["--model", golden.target, "--drafter", golden.drafter]


def folder(name):
    return os.path.join(scratch.name, name)


def answer(*args):
    return run_json("generate", *args, *ANSWER)["token_ids"]


def lines(*args):
    """What standard error says."""
    result = run("generate", *args, *ANSWER)
    assert result.returncode == 0, result.stderr
    return result.stderr.decode().splitlines()


def caches(*args):
    model = run_json("doctor", *args)["model"]
    return tuple(text and text.split(":")[0] for text in (model["target_cache"], model["drafter_cache"]))


def test_same_ids():
    cache = folder("ids")
    for args in (["--model", golden.model], PAIR, [*PAIR, "--exact"], [*PAIR, "--drafter-bits", "8"],
                 [*PAIR, "--threads", "1"], [*PAIR, "--temperature", "0.8", "--seed", "3"]):
        plain = answer(*args)
        for _ in range(2):
            assert answer(*args, "--weights-cache", cache) == plain, args
        assert lines(*args, "--weights-cache", cache) == []
    # targets: the model, the pair's and it exact; drafters: 4 bits, exact, 8 bits
    assert len(os.listdir(cache)) == 6, os.listdir(cache)


def test_doctor_only_looks():
    cache = folder("doctor")
    args = [*PAIR, "--weights-cache", cache]
    assert caches(*PAIR) == (None, None)
    assert caches(*args) == ("absent", "absent")
    assert not os.path.exists(cache)
    assert lines(*args) == []
    assert caches(*args) == ("used", "used")
    assert caches(*args, "--drafter-bits", "8") == ("used", "absent")
    assert caches(*args, "--exact") == ("absent", "absent")
    text = run("doctor", *args).stdout.decode()
    assert "cache        used: repacked weights read from " + cache in text, text
    for name in os.listdir(cache):
        os.truncate(os.path.join(cache, name), 100)
    assert caches(*args) == ("ignored", "ignored")


def test_bench():
    cache = folder("bench")
    for command in (["decode", *PAIR, "--depth", "4", "--tokens", "4"], ["verify", "--model", golden.target, "--runs", "1"],
                    ["prefill", "--model", golden.target, "--runs", "1", "--tokens", "8"]):
        result = run("bench", *command, "--weights-cache", cache)
        assert result.returncode == 0 and result.stderr == b"", result.stderr
    assert len(os.listdir(cache)) == 2


def test_changed_source():
    """A file that was changed, or a copy of it elsewhere, has another cache."""
    cache, model = folder("changed"), folder("model")
    shutil.copytree(golden.model, model)
    os.chmod(model, 0o755)
    args = ["--model", model, "--weights-cache", cache]
    assert lines(*args) == [] and len(os.listdir(cache)) == 1
    for name in ("model.safetensors", "config.json"):
        os.utime(os.path.join(model, name), ns=(0, 123456789))
        assert caches(*args) == ("absent", None), name
        assert lines(*args) == []
    assert len(os.listdir(cache)) == 3
    link = folder("link")
    os.symlink(model, link)
    assert caches("--model", link + "/", "--weights-cache", cache) == ("used", None)  # the same files
    os.rename(model, folder("moved"))
    assert caches("--model", folder("moved"), "--weights-cache", cache) == ("absent", None)


def test_damaged():
    cache = folder("damaged")
    args = [*PAIR, "--weights-cache", cache]
    want = answer(*PAIR)
    assert answer(*args) == want
    for name in sorted(os.listdir(cache)):
        path = os.path.join(cache, name)
        for at in (3, 60, 100, 2 << 20, os.path.getsize(path) - 1):
            with open(path, "r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 1]))
            assert answer(*args) == want, (name, at)
            assert lines(*args) == [], (name, at)
        os.truncate(path, os.path.getsize(path) // 2)
        errors = lines(*args)
        assert len(errors) == 1 and path in errors[0] and "it is damaged" in errors[0], errors
        assert lines(*args) == []


def test_folder_that_cannot_be():
    want = answer(*PAIR)
    file = folder("file")
    open(file, "wb").close()
    for cache in (file, file + "/below", folder("no/such/folder")):
        errors = lines(*PAIR, "--weights-cache", cache)
        assert len(errors) == 1 and cache in errors[0] and "cannot be written" in errors[0], errors
        assert answer(*PAIR, "--weights-cache", cache) == want
    result = run("generate", *PAIR, *ANSWER, "--weights-cache", "")
    assert result.returncode == 2 and b"--weights-cache needs a path" in result.stderr


def test_several_at_once():
    cache = folder("several")
    args = [PROGRAM, "generate", *PAIR, *ANSWER, "--weights-cache", cache]
    runs = [subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(6)]
    results = {process.communicate(timeout=120) for process in runs}
    assert len(results) == 1 and results.pop()[1] == b""
    assert sorted(name.split(".")[-1] for name in os.listdir(cache)) == ["dspack", "dspack"]


main(globals())
