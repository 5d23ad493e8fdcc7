"""The tutorials run as written, and print the output that they show."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
ON_MACHINES = TUTORIALS / "machines.md"
AGAIN = "run tools/run_tutorials.py and look at what changed"
SHOWN = [page for page in sorted(TUTORIALS.glob("*.md")) if re.search("^```(python|console)", page.read_text(), re.M)]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import run_tutorials

    return run_tutorials


@pytest.mark.parametrize("page", [page for page in SHOWN if page != ON_MACHINES], ids=lambda page: page.stem)
def test_a_tutorial_prints_what_it_shows(page, tool, tmp_path):
    text = page.read_text(encoding="utf-8")
    assert tool.masked(tool.run_page(text, tmp_path)) == tool.masked(text), AGAIN


def ledger_lines(text, tool):
    """The kinds of ledger lines in a page, without numbers and user names.

    The number of lines varies by chance, and so do line breaks and the last line.
    """
    [ledger] = re.findall(r"\$ silvan site ledger[^\n]*\n(.*?)```", text, re.S)
    plain = re.sub(r"\d[\d,]*", "0", tool.masked(ledger)).replace(" SIZE", "")
    plain = re.sub(r"(Study: (none|example HASH) )?For: .*? When What left, and who sees it Size", "", plain)
    plain = re.sub(r"(?<=as by default, by )\S+", "WHO", plain)
    return {re.split(r" \d+ TIME", line)[0].strip(" 0") for line in plain.split("TIME")}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_tutorial_on_machines_starts_machines_and_shows_a_ledger(tool, tmp_path):
    """Keys are random between machines, so metrics differ from run to run; commands and kinds of lines do not."""
    pytest.importorskip("nvflare")
    text = ON_MACHINES.read_text(encoding="utf-8")
    again = tool.run_page(text, tmp_path)
    assert ledger_lines(again, tool) == ledger_lines(text, tool), AGAIN
    for part in ("Does joining help?", "Verification: sums verified", "Written to"):
        assert part in text
        assert part in again


def test_outputs_below_a_block_are_replaced_and_study_files_written(tool, tmp_path):
    page = """```python
print(6 * 7)
```

```text
41
```

```toml
# a.toml
name = "a"
```

```console
$ silvan --version
silvan 0
```
"""
    again = tool.run_page(page, tmp_path)
    assert "```text\n42\n```" in again
    assert "41" not in again
    assert "silvan 0\n" not in again
    assert (tmp_path / "a.toml").read_text() == '# a.toml\nname = "a"\n'
    with pytest.raises(RuntimeError, match=r"no\.toml"):
        tool.run_page("```console\n$ silvan fit no.toml\n```\n", tmp_path)
