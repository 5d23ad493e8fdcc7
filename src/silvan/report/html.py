"""stub"""
from pathlib import Path
from silvan.report.run import Run
def write_report(run: Run) -> Path:
    return run.file("report.html")
