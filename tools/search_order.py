"""A hook of mkdocs: the order of search results, and pages of wide tables without a table of contents beside them."""

from typing import Any

# prefixes of paths in order: guides before reference, and decisions last
BOOSTS = (
    ("tutorials/", 4.0),
    ("decisions/", 0.1),
    ("results/", 0.5),
    ("architecture.md", 0.3),
    ("benchmarks.md", 0.5),
    ("claims.md", 0.5),
    ("guide_tests.md", 0.1),
    ("study.md", 1.0),
    ("cli.md", 1.0),
    ("api/", 0.8),
    ("", 2.0),
)
WIDE = ("results/", "benchmarks.md", "peers.md")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Set a page's rank in search, and give wide tables the whole width."""
    path = page.file.src_uri
    page.meta["search"] = {"boost": next(boost for start, boost in BOOSTS if path.startswith(start))}
    if path.startswith(WIDE):
        page.meta["hide"] = ["toc"]
    return markdown
