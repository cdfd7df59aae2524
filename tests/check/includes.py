#!/usr/bin/env python3
"""Checks which folder includes which (the table of CONTRIBUTING.md), and the size of source files.

A folder may include its own headers, those of the folders named here, base/ everywhere, and
<dspark/...> where the table says `include` (the status header everywhere)."""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
if ROOT.is_file():
    ROOT = ROOT.parents[2]

BELOW_ENGINE = ["tensor", "formats", "text", "backend", "backend/cpu", "model", "draft", "decode"]
ALLOWED = {
    "base": [],
    "tensor": [],
    "formats": ["tensor"],
    "text": ["textkit"],
    "backend": ["tensor"],
    "backend/cpu": ["backend", "tensor"],
    "model": ["backend", "formats"],
    "draft": ["model"],
    "decode": ["draft", "model", "text"],
    "engine": BELOW_ENGINE + ["include"],
    "bench": BELOW_ENGINE + ["engine", "include"],
    "cli": ["include", "bench"],
}
# System headers and libraries by folder; libc and POSIX headers are free everywhere.
LIBRARIES = {"jansson.h": None, "xxhash.h": ["base"], "openssl": ["bench"], "curl": [], "event2": []}
MAX_LINES, MIN_LINES = 900, 10

problems = []


def folder_of(path):
    parts = path.relative_to(ROOT / "src").parts[:-1]
    if parts[:2] == ("backend", "cpu"):
        return "backend/cpu"
    return parts[0]


count = 0
for path in sorted((ROOT / "src").rglob("*.[ch]")):
    count += 1
    folder = folder_of(path)
    name = path.relative_to(ROOT)
    if folder not in ALLOWED:
        problems.append(f"{name}: folder {folder} is not in the table")
        continue
    text = path.read_text()
    for kind, target in re.findall(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', text, re.M):
        if kind == "<":
            if target.startswith("dspark/"):
                if target != "dspark/status.h" and "include" not in ALLOWED[folder]:
                    problems.append(f"{name}: {folder} may not include <{target}>")
                continue
            for library, owners in LIBRARIES.items():
                if target.startswith(library) and owners is not None and folder not in owners:
                    problems.append(f"{name}: {folder} may not use {library}")
            continue
        if target == "textkit.h":
            source = "textkit"
        elif "/" not in target:
            problems.append(f'{name}: "{target}": give the path from src/')
            continue
        else:
            parts = target.split("/")
            source = "backend/cpu" if parts[:2] == ["backend", "cpu"] else parts[0]
        if source in (folder, "base") or source in ALLOWED[folder]:
            continue
        problems.append(f'{name}: {folder} may not include "{target}"')

sized = [p for d in ("src", "include", "ext", "tests", "tools", "scripts", "bench", "examples")
         for p in (ROOT / d).rglob("*") if p.suffix in (".c", ".h", ".rs", ".py", ".sh", ".cu")]
for path in sized:
    lines = path.read_text(errors="replace").count("\n")
    if lines > MAX_LINES:
        problems.append(f"{path.relative_to(ROOT)}: {lines} lines: split it (at most {MAX_LINES})")

for problem in problems:
    print(problem)
print(f"{count} source files checked, {len(problems)} problems")
sys.exit(1 if problems or count == 0 else 0)
