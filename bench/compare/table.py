"""The lines of the table, and how they are written: JSON for programs, Markdown for people."""

import json
import math
import os
import statistics

from . import Failure
from .stats import summary, verdict

HEAD = ("line", "what", "ours", "llama.cpp", "limit", "ratio (95 % bound)", "goal", "reached")


def entry(line, what, turns, ratio, goal=None, ours=None, peer=None, limit=None, unit="", note=""):
    """One row of the table. ratio, ours, peer and limit take a round and give a number; goal is ("at least" or
    "at most", bound) or None for rows that only inform. What cannot be had is said, never left out."""
    row = {"line": line, "what": what, "unit": unit, "goal": list(goal) if goal else None, "note": note}
    for name, figure in (("ours", ours), ("llama.cpp", peer), ("limit", limit)):
        row[name] = None
        if figure:
            try:
                row[name] = statistics.median(turns.values(figure))
            except Failure as failure:
                row.setdefault("lacks", {})[name] = str(failure)
    try:
        values = turns.values(ratio)
    except Failure as failure:
        return row | {"not_measured": str(failure)}
    row |= {"ratio": summary(values), "ratios": values}
    return row | verdict(row["ratio"], goal) if goal else row


def unmeasured(line, what, reason, goal=None):
    return {"line": line, "what": what, "unit": "", "goal": list(goal) if goal else None, "note": "",
            "ours": None, "llama.cpp": None, "limit": None, "not_measured": reason}


def number(value):
    """Three digits that count."""
    if value is None:
        return "-"
    return f"{value:.0f}" if 100 <= abs(value) < 1e15 else f"{value:.3g}"


def cells(row):
    def figure(name):
        return "-" if row.get(name) is None else f"{number(row[name])} {row['unit']}".strip()

    goal = "-"
    if row["goal"]:
        goal = f"{'≥' if row['goal'][0] == 'at least' else '≤'} {number(row['goal'][1])}"
    if "not_measured" in row:
        ratio, reached = f"not measured: {row['not_measured']}", "not measured"
    else:
        r = row["ratio"]
        ratio = f"{number(r['median'])} ({number(r['low'])}-{number(r['high'])})"
        reached = "-" if not row["goal"] else ("yes" if row["reached"] else "no") + ("" if row["sure"] else "?")
    what = row["what"] + (f" ({row['note']})" if row["note"] else "")
    return [str(row["line"]), what, figure("ours"), figure("llama.cpp"), figure("limit"), ratio, goal, reached]


def pipe_row(parts):
    return "| " + " | ".join(part.replace("|", "\\|").replace("\n", " ") for part in parts) + " |"


def markdown(result):
    """header: a dict of strings; lines: {line: facts of its measurement}; rows: of entry and unmeasured."""
    out = [f"# {result['title']}", ""]
    out += [f"- **{name}:** {value}" for name, value in result["header"].items()]
    if result.get("interrupted"):
        out += ["", "**Interrupted: some lines are missing or have fewer rounds.**"]
    out += ["", pipe_row(HEAD), pipe_row(["---"] * len(HEAD))]
    out += [pipe_row(cells(row)) for row in result["rows"]]
    out += ["", "Figures are medians over the rounds, ratios medians of the rounds' ratios with their bootstrap 95 % "
                "interval. Reached: by the median; with `?` where the interval holds the goal. A row without a goal "
                "only informs."]
    facts = result.get("lines", {})
    if facts:
        names = ("rounds", "seconds", "others", "machine")
        out += ["", "## Rounds", "", "Others: cores that other programs used meanwhile, median and most.", "",
                pipe_row(["line", *names]), pipe_row(["---"] * 5)]
        out += [pipe_row([line, *(str(fact.get(name, "-")) for name in names)]) for line, fact in facts.items()]
    if result.get("commands"):
        out += ["", "## Commands", "", "```", *result["commands"], "```"]
    return "\n".join(out) + "\n"


def write(path, text):
    """Whole or not at all, so that an interrupted run leaves the former file."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


def plain(value):
    """With null for what is no number, since JSON has no NaN."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save_as(prefix, result, text):
    write(prefix + ".json", json.dumps(plain(result), indent=1, ensure_ascii=False) + "\n")
    write(prefix + ".md", text)


def save(prefix, result):
    save_as(prefix, result, markdown(result))
