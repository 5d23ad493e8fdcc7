"""Tables of a site's ledger and approvals, for a terminal."""

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.text import Text

from silvan.cli.plain_text import clean
from silvan.cli.terminal import shown
from silvan.cli.whole_table import make_table
from silvan.report.site_tables import ReportTable
from silvan.util.readable import count_of, format_bytes

if TYPE_CHECKING:
    from silvan.privacy.ledger import Line, Verified
    from silvan.privacy.site_folder import Approval
    from silvan.study.run_folder import Kind

_TASKLESS = ("agreement", "the site's owner")
"""Headings for lines without a task: requests before any model, and the owner's decisions."""

_STYLES = {"refused": "yellow", "failed": "red"}


def lines_table(lines: list["Line"], total: int) -> RenderableType:
    """Return a table of the ledger's lines for each study."""
    if not lines:
        return Text("The ledger has no lines: nothing has left the site.")
    parts: list[RenderableType] = []
    before = ""
    for (study, task), some in groupby(lines, key=lambda line: (line.study, line.task or _TASKLESS[line.kind == ""])):
        table = make_table()
        for head in ("", "When", "What left, and who sees it", "Size"):
            justify: JustifyMethod = "right" if head in ("", "Size") else "left"
            table.add_column(head, justify=justify, overflow="fold", no_wrap=head in ("", "When", "Size"))
        for line in some:
            at, text = line.at.replace("T", " ").removesuffix("+00:00"), clean(line.describe())
            style = _STYLES.get(line.outcome, "")
            table.add_row(str(line.number), clean(at), Text(text, style=style), format_bytes(line.bytes))
        parts += [Text(clean(f"Study: {study}"), style="bold"), Text()] if study != before else []
        parts += [Text(clean(f"For: {task}"), style="bold"), table, Text()]
        before = study
    counts = Counter[str](line.outcome for line in lines)
    listed = ("answered", "refused", "failed", "restored", "decided")
    outcomes = ", ".join(f"{counts[what]:,} {what}" for what in listed if counts[what])
    cut = "" if len(lines) == total else f" (the last {len(lines):,} of {total:,})"
    size = format_bytes(sum(line.bytes for line in lines))
    parts.append(Text(f"{count_of(len(lines), 'line')}{cut}: {outcomes}; {size} in all."))
    parts.append(Text("Times are UTC. --verify checks that no line was changed or removed.", style="dim"))
    return Group(*parts)


def kinds_table(kinds: list["Kind"]) -> RenderableType:
    """Return a table of what replies contain and who sees them, by kind of message."""
    seen = {"ask": "the coordinator", "total": "only the sum over sites is used"}
    rows = [[kind.name, kind.answers, seen[kind.verb]] for kind in kinds]
    return shown(ReportTable(["Kind", "What would leave", "Who sees it"], rows, texts=3))


def verdict(found: "Verified", key: str) -> RenderableType:
    """Return the result of verifying the ledger."""
    signer = Text(f"Signed with the key {clean(key)}", style="dim")
    if found.faults:
        faults = [Text(f"  {clean(fault)}") for fault in found.faults[:20]]
        more = [Text(f"  and {len(found.faults) - 20:,} more")] if len(found.faults) > 20 else []
        return Group(Text("The ledger cannot be trusted:", style="bold red"), *faults, *more, Text(), signer)
    parts: list[RenderableType] = [
        Text(f"The ledger is intact: {count_of(found.lines, 'line')}, each signed and in its place.", style="green"),
        signer,
        Text(f"Digest of the last line: {found.hash}", style="dim"),
        Text("Note it elsewhere; --noted DIGEST then proves later what was here.", style="dim"),
    ]
    if found.torn:
        parts.append(
            Text("The last line is unfinished: the site stopped while writing it, so nothing was sent with it.")
        )
    return Group(*parts)


def approvals_list(approvals: list["Approval"]) -> RenderableType:
    """Return the studies that the owner approved, one below the other, since their ids are too long for a table."""
    if not approvals:
        return Text("No study is approved.")
    parts: list[RenderableType] = []
    for approval in approvals:
        lost = "" if approval.losses is None else f"; {approval.losses or 'none'} may drop out"
        kinds = ("all that the policy allows" if kind == "*" else kind for kind in approval.messages or ())
        lines = {
            "Messages": ", ".join(kinds),
            "Sites in sums": f"{', '.join(approval.sites or ['any'])}{lost}",
            "Tasks": "any number" if approval.tasks is None else str(approval.tasks),
            "Since": f"{approval.at.replace('T', ' ').removesuffix('+00:00')} UTC",
            **({"By": approval.by} if approval.by else {}),
        }
        parts += [Text()] * bool(parts)
        parts.append(Text(clean(f"Approved: {approval.study}"), style="bold"))
        parts += [Padding(Text(clean(f"{name}: {text}")), (0, 0, 0, 2)) for name, text in lines.items()]
    return Group(*parts)
