#!/usr/bin/env python3
"""Checks that every relative link and #anchor of the documentation resolves. Needs no network and no package.

    scripts/check-links.py                checks all Markdown files, and that the book contains each page
    scripts/check-links.py target/book    checks the HTML pages that `mdbook build` wrote
    scripts/check-links.py DIRECTORY      checks the Markdown files that a package installs there

Links to other hosts are not followed. Exits with status 1 if a link does not resolve.
"""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^\s)>]+)>?[^)]*\)")
DEFINITION = re.compile(r"^\s{0,3}\[[^\]]+\]:\s*<?(\S+?)>?(?:\s|$)")
INCLUDE = re.compile(r"\{\{#include\s+([^\s:}]+)[^}]*\}\}")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$")
EXPLICIT_ID = re.compile(r"<[^>]+\s(?:id|name)=[\"']([^\"']+)[\"']")


def prose(text):
    """The lines of a Markdown file with their numbers, without code."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (fence is None or mark[1].startswith(fence)):
            fence = mark[1] if fence is None else None
        elif fence is None:
            yield number, re.sub(r"(`+)(?:(?!\1).)+\1", "", line)


def slug(heading):
    """The anchor of a heading, by the rule that GitHub and mdBook share."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[^\w\- ]", "", text.replace("`", "").lower())
    return text.replace(" ", "-")


def markdown_anchors(path, cache={}):
    """All anchors of a Markdown file."""
    if path not in cache:
        found, seen, fence = set(), {}, False
        for line in path.read_text(encoding="utf-8").splitlines():
            if re.match(r"\s*(```|~~~)", line):
                fence = not fence
            heading = None if fence else HEADING.match(line)
            if heading:
                name = slug(heading[1])
                count = seen.get(name, 0)
                seen[name] = count + 1
                found.add(f"{name}-{count}" if count else name)
            found.update(EXPLICIT_ID.findall(line))
        cache[path] = found
    return cache[path]


def is_remote(target):
    return bool(urlsplit(target).scheme) or target.startswith("//")


def check_target(page, target, anchors, root=ROOT):
    """Why `target`, a link on `page`, does not resolve; None if it does."""
    path, _, anchor = target.partition("#")
    file = (page.parent / unquote(path)).resolve() if path else page
    if not file.is_relative_to(root):
        return "leaves the directory"
    if not file.exists():
        return "no such file"
    if anchor and file.suffix == page.suffix and unquote(anchor) not in anchors(file):
        return "no such anchor"
    return None


def markdown_files():
    """All Markdown files that are tracked, or would be with `git add`."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True,
    )
    if listed.returncode == 0:
        return sorted({ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()})
    # A source archive has no git.
    return sorted(p for p in ROOT.rglob("*.md") if "target" not in p.relative_to(ROOT).parts)


def check_markdown(root=ROOT):
    findings, links = [], 0
    files = markdown_files() if root == ROOT else sorted(root.rglob("*.md"))
    for page in files:
        for number, line in prose(page.read_text(encoding="utf-8")):
            targets = LINK.findall(line) + DEFINITION.findall(line) + INCLUDE.findall(line)
            for target in targets:
                if is_remote(target):
                    continue
                links += 1
                why = check_target(page, target, markdown_anchors, root)
                if why:
                    findings.append(f"{page.relative_to(root)}:{number}: {target}: {why}")
    if root == ROOT:
        findings += missing_from_book(files)
    return findings, f"{len(files)} Markdown files", links


def missing_from_book(files):
    """Pages below docs/ that docs/SUMMARY.md does not list."""
    summary = ROOT / "docs/SUMMARY.md"
    if not summary.exists():
        return []
    listed = {(summary.parent / target).resolve() for target in LINK.findall(summary.read_text(encoding="utf-8"))}
    pages = [f for f in files if f.is_relative_to(summary.parent) and f != summary]
    return [f"docs/SUMMARY.md: {p.relative_to(summary.parent)} is not in the book" for p in pages if p not in listed]


class Page(HTMLParser):
    """Links and ids of one HTML page."""

    def __init__(self, path):
        super().__init__()
        self.targets, self.ids = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.targets.append((self.getpos()[0], value))
            elif value and (name == "id" or (name == "name" and tag == "a")):
                self.ids.add(value)


def check_book(book):
    """Checks the pages below `book`, except 404.html, whose links are relative to the root of a site."""
    findings, links = [], 0
    pages = {p: Page(p) for p in sorted(book.rglob("*.html")) if p.name not in ("404.html", "toc.html")}
    for path, page in pages.items():
        for number, target in page.targets:
            if is_remote(target):
                continue
            links += 1
            name, _, anchor = target.partition("#")
            file = (path.parent / unquote(urlsplit(name).path)).resolve() if name else path
            if not file.exists():
                findings.append(f"{path.relative_to(book)}:{number}: {target}: no such file")
            elif anchor and file in pages and unquote(anchor) not in pages[file].ids:
                findings.append(f"{path.relative_to(book)}:{number}: {target}: no such anchor")
    if not pages:
        findings.append(f"{book} has no HTML pages: run 'mdbook build'")
    return findings, f"{len(pages)} HTML pages", links


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
        return 2
    directory = Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT
    is_markdown = directory == ROOT or any(directory.glob("*.md"))
    findings, where, links = check_markdown(directory) if is_markdown else check_book(directory)
    for finding in findings:
        print(finding, file=sys.stderr)
    print(f"links: {links} in {where}, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
