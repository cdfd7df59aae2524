"""The files that measurements need, made when first asked for and kept in a folder."""

import json
import os
import re
import sys

from . import Failure
from .process import run

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.dirname(HERE)
NATIVE = ("-march=native",)


def compile_roofline(work, flags=NATIVE, timeout=120):
    """The program bench/roofline.c for an instruction set; made anew when its source is newer."""
    source = os.path.join(BENCH, "roofline.c")
    made = os.path.join(work, "roofline" + re.sub(r"[^a-z0-9]", "", "".join(flags).lower()))
    if not os.path.exists(made) or os.path.getmtime(made) < os.path.getmtime(source):
        os.makedirs(work, exist_ok=True)
        compiler = os.environ.get("CC", "cc")
        run([compiler, "-O3", *flags, "-pthread", source, "-o", made + ".new"], timeout)
        os.replace(made + ".new", made)
    return made


def read_prompts(path):
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line)["prompt"] for line in file if line.strip()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path} is no file of JSON lines with a prompt: {error}") from None


def evenly(items, count):
    """count of the items, spread evenly, the first among them."""
    count = min(count, len(items))
    return [items[len(items) * i // count] for i in range(count)]


class Files:
    """Paths; every method raises Failure where a file can neither be found nor made."""

    def __init__(self, args, llama_tool, timeout):
        self.args, self.llama_tool, self.timeout = args, llama_tool, timeout
        os.makedirs(args.work, exist_ok=True)

    def _made(self, name, command):
        """command takes the path to write to; the file appears under its name only when it is whole."""
        path = os.path.join(self.args.work, name)
        if not os.path.exists(path):
            try:
                run(command(path + ".new"), self.timeout)
                os.replace(path + ".new", path)
            except OSError as error:
                raise Failure(f"{path} was not made: {error.strerror}") from None
        return path

    def _peer(self, name):
        if not self.args.peers:
            raise Failure(f"--peers is needed, the folder of {name}")
        path = os.path.join(self.args.peers, name)
        if not os.path.exists(path):
            raise Failure(f"there is no {path}")
        return path

    def q4_1(self):
        if not os.path.exists(self.args.model):
            raise Failure(f"there is no {self.args.model}")
        return self.args.model

    def q4_0(self):
        """The Q4_1 file's weights quantised again, from 4 bits to 4: the same for both programs."""
        if self.args.model_q4_0:
            if not os.path.exists(self.args.model_q4_0):
                raise Failure(f"there is no {self.args.model_q4_0}")
            return self.args.model_q4_0
        name = re.sub(r"[-_.]?q4_1", "", os.path.basename(self.args.model).removesuffix(".gguf"), flags=re.I)
        quantize = self.llama_tool("llama-quantize")
        return self._made(f"{name or 'model'}-Q4_0.gguf",
                          lambda out: [quantize, "--allow-requantize", self.q4_1(), out, "Q4_0"])

    def random(self, shape, kind):
        """Random weights in the shape of a larger model: only speeds mean something."""
        script = self._peer("make_random_gguf.py")
        return self._made(f"{shape}-{kind}.gguf", lambda out: [
            sys.executable, script, "--shape", shape, "--type", kind, "--tokenizer-from", self.q4_1(), out])

    def llama_drafter(self):
        """The drafter as llama.cpp loads it."""
        if not self.args.float_drafter:
            raise Failure("--float-drafter is needed, the drafter before it was quantised")
        script = self._peer("drafter_to_gguf.py")
        return self._made("drafter-Q8_0.gguf", lambda out: [
            sys.executable, script, self.args.float_drafter, self.q4_1(), out, "--type", "q8_0"])

    def roofline(self):
        return compile_roofline(self.args.work)

    def prompt_sets(self):
        """Name -> path."""
        try:
            names = sorted(n for n in os.listdir(self.args.prompts) if n.endswith(".jsonl"))
        except OSError as error:
            raise Failure(f"{self.args.prompts} cannot be read: {error.strerror}") from None
        if not names:
            raise Failure(f"there are no *.jsonl in {self.args.prompts}")
        return {n.removesuffix(".jsonl"): os.path.join(self.args.prompts, n) for n in names}

    def prompts(self, per_set):
        """Some of every set, the sets in turn: a list of the text and a file with only that prompt."""
        chosen = {name: evenly(read_prompts(path), per_set) for name, path in self.prompt_sets().items()}
        out = []
        for i in range(per_set):
            for name, texts in chosen.items():
                if i < len(texts):
                    path = os.path.join(self.args.work, f"prompt-{name}-{i}of{len(texts)}.jsonl")
                    with open(path, "w", encoding="utf-8") as file:
                        file.write(json.dumps({"prompt": texts[i]}) + "\n")
                    out.append((texts[i], path))
        return out

    def long_text(self, characters):
        """A prompt with the beginning of a book, repeated where it is too short, and something to do with it."""
        source = os.path.join(BENCH, "text", "genesis.txt")
        try:
            with open(source, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise Failure(f"{source} cannot be read: {error.strerror}") from None
        text = text * (characters // len(text) + 1)
        path = os.path.join(self.args.work, f"text-{characters}.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text[:text.rindex(" ", 0, characters)] + "\n\nRetell this text in your own words, in detail.")
        return path
