"""A hook of mkdocs: each public name gets a page with its signature and docstring; ``::: silvan.Name`` links to it."""

import inspect
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_NAMED = re.compile(r"^::: silvan\.(\w+)$", re.M)
_SECTION = re.compile(r"^([A-Z]\w+)\n-{3,}\n", re.M)
_ENTRY = re.compile(r"^(\S[^\n]*)\n((?:[ ]{4}[^\n]*\n?|\n)*)", re.M)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version below every page."""
    from silvan import __version__

    config.copyright = f"silvan {__version__}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each public name."""
    import silvan

    for name in silvan.__all__:
        files.append(File.generated(config, f"api/{name}.md", content=describe(name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the text of a page with links to the names in it, each with its first sentence."""
    return _NAMED.sub(lambda match: f"- [`{match[1]}`](api/{match[1]}.md): {_first_line(match[1])}", markdown)


def _first_line(name: str) -> str:
    import silvan

    return _prose((inspect.getdoc(getattr(silvan, name)) or "").split("\n\n")[0].replace("\n", " "))


def describe(name: str) -> str:
    """Return a public name's documentation as Markdown."""
    import silvan

    thing = getattr(silvan, name)
    lines = [
        f"# {name}",
        "",
        "```python",
        f"{name}{_signature(thing)}",
        "```",
        "",
        _sections(inspect.getdoc(thing) or ""),
    ]
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        lines += [_method(name, *member) for member in inspect.getmembers(thing) if _is_ours(*member)]
    return "\n".join(lines)


def _signature(thing: Any) -> str:
    try:
        signature = inspect.signature(thing)
    except ValueError:
        return "(...)"
    shown = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=shown, return_annotation=inspect.Signature.empty))


def _is_ours(name: str, member: Any) -> bool:
    """Whether a member is a method or property that this package documents."""
    function = member.fget if isinstance(member, property) else inspect.unwrap(getattr(member, "__func__", member))
    module = getattr(function, "__module__", "") or ""
    return not name.startswith("_") and callable(function) and module.startswith("silvan.") and bool(member.__doc__)


def _method(owner: str, name: str, member: Any) -> str:
    call = "" if isinstance(member, property) else _signature(member).replace("(self, ", "(").replace("(self)", "()")
    return f"## `{name}{call}` {{ #{owner.lower()}-{name.lower()} }}\n\n{_sections(inspect.getdoc(member) or '')}\n"


def _sections(text: str) -> str:
    """Return a docstring in numpy's style as Markdown."""
    first, *rest = _SECTION.split(inspect.cleandoc(text) + "\n")
    found = [_prose(first)]
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        if title == "Examples":
            found.append(f"**Examples**\n\n```pycon\n{body.strip()}\n```\n")
        else:
            entries = _ENTRY.findall(body)
            listed = [
                f"- `{name}`: {' '.join(_prose(said).split())}" if said.strip() else f"- {name}"
                for name, said in entries
            ]
            found.append(f"**{title}**\n\n" + "\n".join(listed) + "\n")
    return "\n\n".join(found)


def _prose(text: str) -> str:
    return text.replace("``", "`").strip()
