"""``silvan``: registers all commands, and prints errors as short messages."""

import os
import select
import sys
import warnings
from typing import Annotated, Any

import typer

from silvan.cli import site_command, study_command
from silvan.cli.adopt_command import adopt
from silvan.cli.advise_command import advise
from silvan.cli.audit_command import audit
from silvan.cli.check_command import check, check_site
from silvan.cli.demo_command import demo
from silvan.cli.describe_command import describe
from silvan.cli.doctor_command import doctor
from silvan.cli.evaluate_command import evaluate
from silvan.cli.fit_command import fit
from silvan.cli.plain_text import PlainGroup, Terminal, clean, plain_words
from silvan.cli.predict_command import predict
from silvan.cli.report_command import report
from silvan.cli.reproduce_command import reproduce
from silvan.cli.site_membership import join, renew, roster, start, stop
from silvan.cli.web_command import web
from silvan.errors import SilvanError
from silvan.util.files import has_no_room

INTERRUPTED = 130


class Commands(PlainGroup):
    """The group of all commands; errors are printed in red, in a line or two."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept ``--debug`` anywhere on the command line."""
        if "--debug" in args:
            args = ["--debug", *(arg for arg in args if arg != "--debug")]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; print its error and exit with a code, unless ``--debug`` is given."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            # typer handles usage errors and exits; a closed pipe (silvan ... | head) is no error
            if isinstance(error, BrokenPipeError) and _nobody_reads():
                raise typer.Exit(1) from None
            if ctx.params.get("debug") or type(error).__module__.split(".")[0] in ("typer", "click"):
                raise
            _print_red(_message(error))
            raise typer.Exit(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Random forests across data silos: rows stay where they are; trees, counts and sums travel.",
)
for command in (demo, advise, check, describe, fit, predict, evaluate, adopt, report, audit, doctor, reproduce, web):
    app.command()(command)
site_command.app.command("check")(check_site)
for of_site in (join, start, renew, roster, stop):
    site_command.app.command()(of_site)
app.add_typer(site_command.app, name="site")
app.add_typer(study_command.app, name="study")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"silvan {version('silvan')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
) -> None:
    """Define the options shared by all commands."""


def main() -> None:
    """Run the command line."""
    if sys.stdout.isatty():
        out = sys.stdout
        sys.stdout = Terminal(out.buffer, encoding=out.encoding, errors=out.errors, line_buffering=True)
    try:
        app()
    finally:
        _nobody_reads()


def _nobody_reads() -> bool:
    """Whether the reader of the output has gone, as in ``silvan ... | head``; the rest of the output is then dropped.

    The unwritten output may be lost already, with nothing left to flush, so this asks the pipe itself.
    """
    try:
        sys.stdout.flush()
        gone = _pipe_is_broken(sys.stdout.fileno())
    except BrokenPipeError:
        gone = True
    except (ValueError, OSError):  # closed, or not a file
        return False
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return gone


def _pipe_is_broken(file: int) -> bool:
    """Whether a file is a pipe without a reader."""
    if not hasattr(select, "poll"):  # Windows
        return False
    asked = select.poll()
    asked.register(file, 0)
    return any(event & select.POLLERR for _, event in asked.poll(0))


def _message(error: BaseException) -> str:
    """Describe an error and its remedy in a line or two."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; finished work is kept, and `silvan fit` resumes from there"
    if has_no_room(error) or "No space left on device" in str(error):
        where = getattr(error, "filename", None)
        return f"the disk is full{f' ({where})' if where else ''}; free some space, then run the command again"
    if isinstance(error, FileNotFoundError) and error.filename is None and not _here():
        return "the current folder was removed; change to another one"
    if isinstance(error, OSError) and error.strerror:
        # path and reason, without the error number
        text = f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror
        return f"{text}; check the path, the permissions and the space left"
    if not isinstance(error, SilvanError):
        return f"a bug in silvan: {type(error).__name__}: {error}\nadd --debug to see where, and please report it"
    cause = error.__cause__
    more = isinstance(cause, SilvanError) and str(cause) not in str(error)
    return plain_words(f"{error}\n{cause}" if more else str(error))


def _here() -> bool:
    """Whether the current folder still exists."""
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line, without the source location."""
    typer.echo(f"warning: {clean(plain_words(str(message)))}", err=True)


def _print_red(text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, soft_wrap=True)
    lines = text.split("\n")
    for i, line in enumerate(lines):
        console.print(Text(f"silvan: {clean(line)}" if i == 0 else f"        {clean(line)}", style="red"))


if __name__ == "__main__":
    main()
