"""Makes links of the documents right on the site: those that leave the folder docs lead to the repository."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_LINK = re.compile(r"(\]\()((?:\.\./)+[^)\s#]*)")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn a page's links that lead out of the folder."""
    folder = PurePosixPath("docs") / PurePosixPath(page.file.src_uri).parent

    def turned(match: re.Match) -> str:
        target = _joined(folder, match[2])
        if target.startswith("docs/"):
            return match[0]
        kind = "blob" if PurePosixPath(target).suffix else "tree"
        return f"{match[1]}{config['repo_url']}/{kind}/main/{target}"

    return _LINK.sub(turned, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt: every page with its title, for programs that read documents."""
    docs = Path(config["docs_dir"])
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    for path in sorted(docs.rglob("*")):
        if path.suffix == ".md":
            title = path.read_text().split("\n", 1)[0].lstrip("# ")
            name = "index" if path == docs / "README.md" else path.stem
            lines.append(f"- [{title}]({path.relative_to(docs).with_name(name + '.html').as_posix()})")
    (Path(config["site_dir"]) / "llms.txt").write_text("\n".join(lines) + "\n")


def _joined(folder: PurePosixPath, link: str) -> str:
    parts = list(folder.parts)
    for part in PurePosixPath(link).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)
