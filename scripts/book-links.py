#!/usr/bin/env python3
"""A preprocessor of mdBook (see book.toml): adapts the links of chapters that include files of the root.

A link to a file that is a chapter, or is included by one, leads to that chapter. A link to any other file of
the repository, source code for example, becomes plain text, since the book does not contain that file.
"""

import json
import os
import re
import sys
from pathlib import Path

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^\s)]+)\)")
INCLUDE = re.compile(r"\{\{#include\s+([^\s:}]+)\}\}")


def chapters(items):
    """All chapters that have a file, at any depth."""
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            if chapter.get("source_path"):
                yield chapter
            yield from chapters(chapter["sub_items"])


def main():
    if sys.argv[1:2] == ["supports"]:
        return 0
    context, book = json.load(sys.stdin)
    root = Path(context["root"]).resolve()
    src = root / context["config"]["book"].get("src", "src")
    pages = list(chapters(book.get("items", book.get("sections", []))))
    # Each file, and the chapter that shows it.
    shown = {(src / page["source_path"]).resolve(): page for page in pages}
    base = {}
    for page in pages:
        file = (src / page["source_path"]).resolve()
        included = INCLUDE.fullmatch(file.read_text(encoding="utf-8").strip())
        origin = (file.parent / included[1]).resolve() if included else file
        shown[origin] = page
        base[page["source_path"]] = origin.parent

    def adapt(page, match):
        image, text, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return match[0]
        file = (base[page["source_path"]] / path).resolve()
        here = (src / page["source_path"]).resolve().parent
        if file in shown:
            to = os.path.relpath(src / shown[file]["source_path"], here)
        elif file.is_relative_to(src.resolve()) and file.is_file():
            to = os.path.relpath(file, here)
        else:
            return text
        # mdBook renames each README to index.
        to = re.sub(r"\bREADME\.md$", "index.md", to)
        return f"{image}[{text}]({to}{'#' + anchor if anchor else ''})"

    for page in pages:
        code = False
        lines = page["content"].split("\n")
        for index, line in enumerate(lines):
            if line.lstrip().startswith(("```", "~~~")):
                code = not code
            elif not code:
                lines[index] = LINK.sub(lambda match: adapt(page, match), line)
        page["content"] = "\n".join(lines)
    json.dump(book, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
