"""The command ``silvan reproduce``: run the requested experiments, write the pages, summarise the results."""

from contextlib import ExitStack
from pathlib import Path

from experiments.reproduce.data import Downloads, check_folder
from experiments.reproduce.engine import Outcomes, plan_paper, run_cases
from experiments.reproduce.page import HELD, NOT_HELD, Section, write_pages
from experiments.reproduce.paper import PAPERS, Paper, find_paper

from silvan.errors import FederationError, InputError
from silvan.study.progress_bars import ProgressBars
from silvan.util.folder_lock import lock_folder
from silvan.util.readable import count_of


def reproduce(
    name: str, *, quick: bool, only: list[str], jobs: int, out: Path, download: bool = False
) -> tuple[list[str], bool]:
    """Run an experiment, or all; return summary lines, and whether every case could be run.

    ``only`` names tables and figures. Finished cases in ``out`` are not run again.
    """
    check_folder()
    if name == "all" and only:
        raise InputError("--table and --figure are of one publication; name it in place of all")
    papers = [find_paper(each) for each in PAPERS] if name == "all" else [find_paper(name)]
    Downloads.allowed = download
    lines, whole = list[str](), True
    for paper in papers:
        items = [paper.item(each) for each in only] or list(paper.items)
        try:
            with ExitStack() as locks:
                for folder in (out / each for each in paper.folders):
                    folder.mkdir(parents=True, exist_ok=True)
                    locks.enter_context(lock_folder(folder))
                outcomes = plan_paper(paper, items, quick, out)
                try:
                    run_cases(paper, outcomes, jobs, ProgressBars())
                finally:  # after an interruption, the page shows the finished cases
                    page, sections = write_pages(paper, outcomes, quick, out)
        except FederationError:
            raise InputError(
                f"another `silvan reproduce` writes to {folder}; wait for it, or name another --out"
            ) from None
        lines += _told(paper, outcomes, page, sections, quick)
        whole &= not outcomes.failed
    return lines, whole


def _told(paper: Paper, outcomes: Outcomes, page: Path, sections: list[Section], quick: bool) -> list[str]:
    came = [came for section in sections for _, came, _ in section.claims]
    held, judged = came.count(HELD), came.count(HELD) + came.count(NOT_HELD)
    rough = " (by few seeds: rough)" if quick else ""
    verdict = f", {held} of {count_of(judged, 'claim')} held{rough}" if judged else ""
    lines = [f"{paper.name}: {outcomes.done} of {count_of(outcomes.total, 'case')}{verdict}; {page}"]
    lines += [f"  {remark}" for remark in outcomes.remarks]
    lines += [f"  not run ({count_of(n, 'case')}): {text}" for text, n in outcomes.absent.items()]
    lines += [f"  failed: {text}" for text in outcomes.failed[:5]]
    if len(outcomes.failed) > 5:
        lines.append(f"  and {len(outcomes.failed) - 5} more that failed")
    return lines
