"""The operators' pages: links lead somewhere, variables exist, and quoted log lines are what the proxy says.

A line in a block ```log is looked up in the string literals of `src/`, piece by piece between the marks of what differs
(`…`), so that a page doesn't teach people to search for words that nobody writes any more.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [
    *sorted((ROOT / "deploy").rglob("*.md")),
    *(ROOT / name for name in ("README.md", "SECURITY.md")),
]
# Words of the kernel and of the runtime, which no source of ours holds.
KERNEL = {"Connection refused (os error 111)", "Too many open files (os error 24)"}


def said():
    """All that may be logged: the source's literals, their continued lines joined."""
    text = "\n".join(file.read_text() for file in sorted((ROOT / "src").rglob("*.rs")))
    return re.sub(r"\\\n\s*", "", text)


def anchors(page):
    """The anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links(page, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"leads to {target}, which isn't there"
        elif anchor and anchor not in anchors(file):
            yield f"leads to {target}, which has no such heading"
    for path in re.findall(r"(?<![\w/.])(?:deploy|loadtest|src)/[\w./-]*\w", text):
        if not (ROOT / path).exists():
            yield f"names {path}, which isn't there"


def check_variables(text, known):
    for variable in sorted(set(re.findall(r"\bRINGWAY_[A-Z0-9_]*[A-Z0-9]", text)) - known):
        yield f"names {variable}, which the proxy doesn't have"


def check_log_lines(text, source):
    for block in re.findall(r"^```log\n(.*?)^```$", text, re.M | re.S):
        for line in block.splitlines():
            quoted = re.sub(r'^error="(.*)"$', r"\1", line)
            pieces = [piece.strip() for piece in quoted.split("…")]
            # A failure's class and its reason are two literals.
            pieces = [part for piece in pieces for part in re.split(r"(?<=^io error): |(?<=^http status): \d+ ", piece)]
            pieces = [piece for piece in pieces if len(piece) > 3 and piece not in KERNEL]
            for piece in pieces:
                if piece not in source:
                    yield f"quotes {line!r}, but {piece!r} is in no log line"
            if not pieces:
                yield f"quotes {line!r}, of which nothing can be looked up"


def main():
    source, known = said(), set()
    for page in (ROOT / "deploy/docs/configuration.md", ROOT / "deploy/test.sh", ROOT / "deploy/check.sh"):
        known.update(re.findall(r"\bRINGWAY_[A-Z0-9_]*[A-Z0-9]", page.read_text()))
    problems = []
    for page in PAGES:
        text = page.read_text()
        found = [*check_links(page, text), *check_variables(text, known), *check_log_lines(text, source)]
        problems += [f"{page.relative_to(ROOT)} {problem}" for problem in found]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"pages: {len(PAGES)}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
