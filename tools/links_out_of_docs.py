"""A hook of mkdocs: links to files of the repository that are not pages become the names of these files."""

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)([^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return the text of a page without links that would lead out of the documents."""
    docs = Path(config["docs_dir"]).resolve()
    here = (docs / page.file.src_uri).parent

    def one(match: re.Match[str]) -> str:
        target = (here / match[2]).resolve()
        if target.is_relative_to(docs) and target.is_file():
            return match[0]
        name = target.relative_to(docs.parent) if target.is_relative_to(docs.parent) else Path(match[2])
        return match[1] if match[1].strip("`") == str(name) else f"{match[1]} (`{name}`)"

    return _LINK.sub(one, markdown)
