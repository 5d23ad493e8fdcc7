"""``silvan web``: serves the live page of a folder on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from html import escape
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from silvan.cli.plain_text import print_lines
from silvan.errors import InputError

if TYPE_CHECKING:
    from silvan.web.access import Root
    from silvan.web.pages import Folder
    from silvan.web.people import People

PORT = 8100


def web(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A coordinator's, a site's, or one with runs.")] = Path(),
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = PORT,
    host: Annotated[str, Option(metavar="ADDRESS", help="Address of this machine to listen on.")] = "127.0.0.1",
    open_: Annotated[bool, Option("--open", help="Show the page in a browser.")] = False,
    root_path: Annotated[
        str, Option(metavar="PATH", help="Path behind a reverse proxy: /north, or https://HOST/north.")
    ] = "",
    add: Annotated[str | None, Option(metavar="NAME", help="Give a person a token, then exit.")] = None,
    right: Annotated[str, Option(metavar="RIGHT", help="With --add: view, approve, or proxy.")] = "view",
    remove: Annotated[str | None, Option(metavar="NAME", help="Revoke a person's token, then exit.")] = None,
) -> None:
    """Serve a folder as a live page: studies, progress, approvals, ledger, results, start and stop."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise InputError("the live page needs starlette and uvicorn: pip install 'silvan[web]'")
    from silvan.util.acting_user import acting_user
    from silvan.web.access import LOOPBACK, Access, Root
    from silvan.web.app import listen, make_app, serve
    from silvan.web.people import People

    pages, people, root = pages_of(folder), People(folder), Root.parse(root_path)
    if add is not None or remove is not None:
        _change(people, add, right, remove, root)
        return
    with listen(host, port) as listener:
        access = Access(listener.getsockname()[1], host, people=people, starter=acting_user(), root=root)
        if host not in LOOPBACK:
            print_lines(
                f"Warning: others can reach {host}, and the connection is not encrypted, so eavesdroppers can act as "
                "you. An SSH tunnel is safer (ssh -L), see docs/web.md."
            )
        print_lines(
            f"The page: {access.address}",
            "Keep this address private: whoever has it can act as you. Ctrl-C stops only the page.",
        )
        with _opened(access.address_once) if open_ else nullcontext():
            serve(make_app(pages, access), listener)


def _change(people: "People", add: str | None, right: str, remove: str | None, root: "Root") -> None:
    """Add or remove a person; print the token of a new person, which is stored nowhere."""
    if remove is not None:
        people.remove(remove)
        print_lines(f"{remove} no longer has access.")
    if add is not None:
        token = people.add(add, right)
        where = f"{root.origin}{root.path}/" if root.origin else "the address of the page, followed by "
        what = "Authorization: Bearer " if right == "proxy" else f"{where}?token="
        print_lines(
            f"{add} may {'name the person' if right == 'proxy' else right}: {what}{token}",
            "Only a digest of the token is stored; --add with the same name makes a new token.",
        )


@contextmanager
def _opened(address: str) -> Iterator[None]:
    """Open an address in a browser through a file that only its owner can read, since command lines are public."""
    with NamedTemporaryFile("w", prefix="silvan-", suffix=".html") as file:  # mode 0600
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(address)}">')
        file.flush()
        typer.launch(Path(file.name).as_uri())
        yield


def pages_of(folder: Path) -> "Folder":
    """Return the pages of a folder, depending on its content."""
    from silvan.deploy.membership.coordinator_folder import HUB
    from silvan.deploy.membership.flare_folder import is_site
    from silvan.deploy.service.process import require_flare

    if (folder / HUB).exists():
        require_flare()
        from silvan.web.coordinator_pages import CoordinatorFolder

        return CoordinatorFolder(folder)
    if is_site(folder):
        from silvan.web.site_pages import SiteFolderPages

        return SiteFolderPages(folder)
    from silvan.web.run_pages import RunsFolder

    return RunsFolder(folder)
