"""llama-server, for one client at a time."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request

from . import Failure
from .process import terminate


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """Started by the first request, so that one that is missing is the failure of that request alone."""

    def __init__(self, program, model, threads, timeout, options=lambda: (), context=4096):
        self.program, self.model, self.threads, self.timeout = program, model, threads, timeout
        self.options, self.context, self.child, self.command = options, context, None, None

    def start(self):
        self.port = free_port()
        self.command = [self.program(), "-m", self.model(), "-t", str(self.threads), "-tb", str(self.threads),
                        "-np", "1", "-c", str(self.context), "--cache-ram", "0", "--host", "127.0.0.1",
                        "--port", str(self.port), "--jinja", *self.options()]
        try:
            self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                          stderr=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            raise Failure(f"{self.command[0]} could not be started: {error.strerror}") from None
        until = time.monotonic() + 120
        while time.monotonic() < until:
            if self.child.poll() is not None:
                raise Failure(f"{' '.join(self.command)} ended with {self.child.returncode}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.1)
        else:
            self.close()
            raise Failure(f"{' '.join(self.command)} was not ready after 120 s")
        self.complete("Hello", 16)  # warms up

    def pids(self):
        return [self.child.pid] if self.child and self.child.poll() is None else []

    def post(self, path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Failure(f"llama-server refused /{path}: {error.read()[:200].decode(errors='replace')}") from None
        except (OSError, ValueError) as error:
            raise Failure(f"llama-server did not answer /{path}: {error}") from None

    def complete(self, prompt, tokens):
        """Greedy; tokens a second count decoding only: (generated - 1) / time after the prompt."""
        if not self.pids():
            self.start()
        templated = self.post("apply-template", {"messages": [{"role": "user", "content": prompt}]})["prompt"]
        got = self.post("completion", {"prompt": templated, "n_predict": tokens, "temperature": 0,
                                       "cache_prompt": False})["timings"]
        after_first, ms = got["predicted_n"] - 1, got["predicted_ms"]
        return {"tokens_per_s": after_first / ms * 1e3 if after_first > 0 and ms > 0 else float("nan"),
                "tokens": got["predicted_n"], "prompt_tokens": got["prompt_n"],
                "drafted": got.get("draft_n", 0), "accepted": got.get("draft_n_accepted", 0)}

    def close(self):
        if self.child:
            terminate(self.child)
            self.child = None
