"""Lines about whole answers: speculative decoding beside plain, ours and llama.cpp's."""

import contextlib
import os
import statistics

from . import Failure, limits
from .server import Server
from .table import entry

DRAFTS = (1, 2, 3, 4, 7)
CONTEXT = 256  # rows in the cache on average while the prompts are answered, for the limit of a round


def best_draft(bench, line, kind, model):
    """The fixed draft length that is fastest on a few prompts, found once a model."""
    if kind in bench.best_drafts:
        return bench.best_drafts[kind]
    sets = ",".join(bench.files.prompt_sets().values())

    def speed(draft):
        return bench.ours(line, "bench generate", model(), "--drafter", bench.args.drafter, "--prompts", sets,
                          "--limit", bench.args.draft_prompts, "--max-new-tokens", bench.args.new_tokens // 2,
                          "--max-draft", draft, threads=bench.threads)["total"]["spec_tokens_per_s"]

    t = bench.turns(line, {f"{kind}, drafts of {n}": lambda run, n=n: speed(n) for n in DRAFTS}, runs=2)
    found = {}
    for n in DRAFTS:
        with contextlib.suppress(Failure):
            found[n] = statistics.median(t.values(lambda r: r[f"{kind}, drafts of {n}"]))
    if not found:
        raise Failure(next(iter(t.errors.values()), "interrupted"))
    best = max(found, key=found.get)
    bench.best_drafts[kind] = best
    return best


def answers(bench, line=7):
    """Greedy answers to the prompt sets, prompt by prompt in turns; decode only."""
    prompts = bench.files.prompts(bench.args.prompts_per_set)
    models = {"Q4_1": bench.files.q4_1, "Q4_0": bench.files.q4_0}
    sides, servers, drafts = {}, {}, {}

    def our_answers(kind, run):
        if kind not in drafts:
            drafts[kind] = best_draft(bench, line, kind, models[kind])
        got = bench.ours(line, "bench generate", models[kind](), "--drafter", bench.args.drafter, "--prompts",
                         prompts[run][1], "--max-new-tokens", bench.args.new_tokens, "--max-draft", drafts[kind],
                         threads=bench.threads)["total"]
        if not got["identical"]:
            raise Failure(f"the drafter changed the answer to {prompts[run][1]}")
        plain, spec = got["plain_tokens_per_s"], got["spec_tokens_per_s"]
        known = plain > 0 and spec > 0  # an answer of one token has no speed
        return got | {"round_ms": got["tokens_per_round"] / spec * 1e3 if known else float("nan"),
                      "plain": plain if known else float("nan"), "spec": spec if known else float("nan")}

    for kind, model in models.items():
        servers[kind] = Server(lambda: bench.llama_tool("llama-server"), model, bench.threads, bench.args.timeout)
        sides[f"ours {kind}"] = lambda run, kind=kind: our_answers(kind, run)
    servers["Q4_1 DSpark"] = Server(
        lambda: bench.llama_tool("llama-server"), bench.files.q4_1, bench.threads, bench.args.timeout,
        lambda: ("--spec-type", "draft-dspark", "-md", bench.files.llama_drafter(), "--spec-draft-n-max", "1"))
    for kind, server in servers.items():
        sides[f"llama.cpp {kind}"] = lambda run, s=server: s.complete(prompts[run][0], bench.args.new_tokens)
    drafter = {}

    def round_bytes():
        if "bytes" not in drafter:
            drafter["bytes"] = bench.drafter_bytes(bench.files.q4_1())
        return limits.bytes_read(bench.shape(bench.files.q4_1()), CONTEXT) + drafter["bytes"]

    sides["machine"] = lambda run: bench.machine(round_bytes(), bench.threads)
    for kind in models:  # before the rounds, so that these are interleaved with nothing
        with contextlib.suppress(Failure):
            drafts[kind] = best_draft(bench, line, kind, models[kind])
    with contextlib.ExitStack() as stack:
        for server in servers.values():
            stack.callback(server.close)
        t = bench.turns(line, sides, len(prompts), lambda: [pid for s in servers.values() for pid in s.pids()])
        bench.commands.setdefault(str(line), []).extend(" ".join(s.command) for s in servers.values() if s.command)
    rows = []

    def per_round(kind):
        try:
            return f"drafts of {drafts[kind]}, " \
                   f"{statistics.median(t.values(lambda r: r[f'ours {kind}']['tokens_per_round'])):.2f} tokens a round"
        except (Failure, KeyError):
            return ""

    for kind, goal in (("Q4_1", 5), ("Q4_0", 3)):
        ours, peer = f"ours {kind}", f"llama.cpp {kind}"
        rows.append(entry(line, f"SmolLM2 {kind} with the drafter / llama.cpp's plain {kind}", t,
                          lambda r: r[ours]["spec"] / r[peer]["tokens_per_s"], ("at least", goal),
                          lambda r: r[ours]["spec"], lambda r: r[peer]["tokens_per_s"], None, "tokens/s",
                          per_round(kind)))
        rows.append(entry(line, f"SmolLM2 {kind} with the drafter / our own plain", t,
                          lambda r: r[ours]["spec"] / r[ours]["plain"], ("at least", 1.5),
                          lambda r: r[ours]["spec"], None, None, "tokens/s", per_round(kind)))
    rows.append(entry(line, "SmolLM2 Q4_1: a round's time at the memory's bandwidth / its time", t,
                      lambda r: round_bytes() / r["machine"]["bandwidth"] * 1e3 / r["ours Q4_1"]["round_ms"],
                      ("at least", 0.6), lambda r: r["ours Q4_1"]["round_ms"], None,
                      lambda r: round_bytes() / r["machine"]["bandwidth"] * 1e3, "ms",
                      f"target at depth {CONTEXT} and drafter read once"))
    rows.append(entry(line, "llama.cpp Q4_1 with the drafter, drafts of 1 / its plain", t,
                      lambda r: r["llama.cpp Q4_1 DSpark"]["tokens_per_s"] / r["llama.cpp Q4_1"]["tokens_per_s"],
                      None, None, lambda r: r["llama.cpp Q4_1 DSpark"]["tokens_per_s"], None, "tokens/s"))
    return rows


def long_context(bench, line=8):
    """An answer about a long text, plain and with the drafter."""
    model, depth = bench.files.q4_1, bench.args.long_depth
    draft = best_draft(bench, line, "Q4_1", model)
    text = bench.files.long_text(int(depth * 4.03))  # characters a token

    def answered(*options):
        got = bench.ours(line, "generate", model(), "--prompt-file", text, "--max-new-tokens", bench.args.new_tokens,
                         "--ctx", 8192, *options, threads=bench.threads)
        return {key: got.get(key) for key in ("tokens_per_s", "tokens_per_round", "prompt_tokens")}

    t = bench.turns(line, {
        "plain": lambda run: answered("--mode", "baseline"),
        "drafter": lambda run: answered("--drafter", bench.args.drafter, "--max-draft", draft, "--mode", "dspark")},
        runs=min(bench.args.long_runs, bench.args.runs))
    note = f"{os.path.basename(text)}, drafts of {draft}"
    with contextlib.suppress(Failure):
        tokens = statistics.median(t.values(lambda r: r["drafter"]["prompt_tokens"]))
        rounds = statistics.median(t.values(lambda r: r["drafter"]["tokens_per_round"]))
        note += f", {tokens:.0f} prompt tokens, {rounds:.2f} tokens a round"
    return [entry(line, "SmolLM2 Q4_1 after a long text, with the drafter / our plain", t,
                  lambda r: r["drafter"]["tokens_per_s"] / r["plain"]["tokens_per_s"], ("at least", 1.5),
                  lambda r: r["drafter"]["tokens_per_s"], None, lambda r: r["plain"]["tokens_per_s"], "tokens/s",
                  note + ", limit: our plain")]
