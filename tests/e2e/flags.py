"""Docs and program agree: docs/cli.md is the program's own page, and no page names an option that is not there.

flags.py PROGRAM SOURCE"""

import pathlib
import re
import sys

from program import run

root = pathlib.Path(sys.argv[2])
page = run("--dump-man", "--markdown").stdout.decode()
known = set(re.findall(r"`(--[a-z][a-z-]*)", page)) | set(re.findall(r"dspark (--[a-z-]+)", page))
failures = []

cli = root / "docs" / "cli.md"
if not cli.exists():
    failures.append("docs/cli.md is missing: dspark --dump-man --markdown > docs/cli.md")
elif cli.read_text(encoding="utf-8") != page:
    failures.append("docs/cli.md is out of date: dspark --dump-man --markdown > docs/cli.md")

# Only commands that run dspark count: cmake and others have options too.
for path in [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]:
    if not path.exists():
        continue
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        for command in re.findall(r"\bdspark [a-z-][^|;&`#>]*", line):
            for flag in re.findall(r"(?<!\S)(--[a-z][a-z-]*)", command):
                if flag not in known and flag != "--dump-man" and flag != "--markdown":
                    failures.append(f"{path.relative_to(root)}: dspark has no option {flag}")

for failure in failures:
    print(failure)
sys.exit(1 if failures else 0)
