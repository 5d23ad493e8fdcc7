"""Writes small Excel files without a library, as Excel itself would."""

import zipfile
from xml.sax.saxutils import escape, quoteattr

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_STYLES = (
    '<fonts count="1"><font/></fonts><fills count="1"><fill/></fills><borders count="1"><border/></borders>'
    '<cellStyleXfs count="1"><xf/></cellStyleXfs>'
    '<cellXfs count="2"><xf numFmtId="0"/><xf numFmtId="14" applyNumberFormat="1"/></cellXfs>'
)


class Day(int):
    """A date, by Excel's number of days."""


class Formula(float):
    """A formula, with the value that Excel last computed."""


def write_xlsx(path, sheets):
    """Writes sheets by name, each a list of rows."""
    numbers = range(1, len(sheets) + 1)
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>'
        f'<Override PartName="/xl/styles.xml" ContentType="{_TYPE}.styles+xml"/>'
        + "".join(f'<Override PartName="/xl/s{i}.xml" ContentType="{_TYPE}.worksheet+xml"/>' for i in numbers)
        + "</Types>",
        "_rels/.rels": _relations({"r1": ("officeDocument", "xl/workbook.xml")}),
        "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>'
        + "".join(f'<sheet name={quoteattr(n)} sheetId="{i}" r:id="r{i}"/>' for i, n in enumerate(sheets, 1))
        + "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": _relations(
            {**{f"r{i}": ("worksheet", f"s{i}.xml") for i in numbers}, "r0": ("styles", "styles.xml")}
        ),
        "xl/styles.xml": f'<styleSheet xmlns="{_MAIN}">{_STYLES}</styleSheet>',
    }
    for i, rows in enumerate(sheets.values(), 1):
        lines = [
            f'<row r="{r}">{"".join(_cell(v, r, c) for c, v in enumerate(row))}</row>' for r, row in enumerate(rows, 1)
        ]
        parts[f"xl/s{i}.xml"] = f'<worksheet xmlns="{_MAIN}"><sheetData>{"".join(lines)}</sheetData></worksheet>'
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, f'<?xml version="1.0"?>{text}')
    return path


def _relations(given):
    lines = [f'<Relationship Id="{i}" Type="{_OFFICE}/{kind}" Target="{to}"/>' for i, (kind, to) in given.items()]
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{"".join(lines)}</Relationships>'


def _cell(value, row, column):
    at = f"{chr(65 + column)}{row}"
    if value is None:
        return ""
    if isinstance(value, str):
        return f'<c r="{at}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'
    if isinstance(value, bool):
        return f'<c r="{at}" t="b"><v>{int(value)}</v></c>'
    style = ' s="1"' if isinstance(value, Day) else ""
    formula = "<f>SUM(A1)</f>" if isinstance(value, Formula) else ""
    return f'<c r="{at}"{style}>{formula}<v>{float(value):g}</v></c>'
