"""Every error silvan raises on purpose.

::

    SilvanError
    ├── InputError (ValueError)      what you passed: a table, a column, a parameter
    │   ├── SchemaError              a table and a schema disagree
    │   └── ExportError              a forest that another format cannot express
    ├── FormatError (ValueError)     a file or a message from outside that is not what it claims to be
    │   ├── VersionError             written in another version of its format
    │   ├── DamagedError             a site's own record that was changed or replaced by an older one
    │   ├── CipherError              ciphertexts out of range, for another key, or with a wrong sum
    │   └── WireError                bytes of a message that cannot be read
    └── FederationError              a study cannot continue
        ├── AgreementError           the sites' tables are incompatible
        ├── RefusedError             a site refused, with a reason
        │   └── RepeatedError        a repeated message, or one older than the last
        └── SiteError                a site failed, stalled or sent an invalid reply; ``site`` names it

An error names the parameter, column or field, what was received, and what to do. ``InputError`` can be corrected by the
caller, ``FormatError`` by the author of the file or message; ``FederationError`` involves another site. Programs should
read an error's attributes, never its text, which may change.
"""

from typing import Self


class SilvanError(Exception):
    """Base class of all errors raised on purpose.

    Catch it to handle any of them.

    Examples
    --------
    >>> import silvan as sv
    >>> try:
    ...     sv.ForestClassifier(n_estimators=0).fit([[0.0], [1.0]], [0, 1])
    ... except sv.SilvanError as error:
    ...     print(error)
    n_estimators must be a whole number of at least 1, got 0
    """


class InputError(SilvanError, ValueError):
    """Something passed by the caller cannot be used.

    Parameters
    ----------
    text
        The message.
    parameter
        The parameter, option or key that caused the error; None if there is no single one.
    given
        The value passed for it.
    expected
        The requirement, as in the message.

    Examples
    --------
    >>> import silvan as sv
    >>> try:
    ...     sv.Policy(min_leaf=0)
    ... except sv.InputError as error:
    ...     print(error)
    ...     print(error.parameter, error.given)
    min_leaf must be at least 1, got 0
    min_leaf 0
    """

    def __init__(
        self, text: str, *, parameter: str | None = None, given: object = None, expected: str | None = None
    ) -> None:
        super().__init__(text)
        self.parameter, self.given, self.expected = parameter, given, expected

    @classmethod
    def wrong(cls, parameter: str, expected: str, given: object, mend: str = "") -> Self:
        """Return the error for an invalid parameter, with advice if the requirement alone is not enough."""
        text = f"{parameter} must be {expected}, got {given!r}" + (f"; {mend}" if mend else "")
        return cls(text, parameter=parameter, given=given, expected=expected)

    @classmethod
    def about(cls, parameter: str, text: str) -> Self:
        """Return the error for a parameter with this remark, such as "is for classification"."""
        return cls(f"{parameter} {text}", parameter=parameter)


class UnavailableError(InputError):
    """The source of a table does not respond at the moment; ``connected`` if it did before."""

    def __init__(self, text: str, *, connected: bool = False) -> None:
        super().__init__(text)
        self.connected = connected


class SchemaError(InputError):
    """A table and a schema disagree.

    Examples
    --------
    >>> import polars as pl
    >>> import silvan as sv
    >>> table = pl.DataFrame({"age": [20, 30, 40, 50], "pulse": [60, 70, 80, 90]})
    >>> model = sv.ForestRegressor(n_estimators=2).fit(table, [1.0, 2.0, 3.0, 4.0])
    >>> try:
    ...     model.forest_.predict(table.drop("pulse"))
    ... except sv.SchemaError as error:
    ...     print(error)
    the table lacks 'pulse'; add these columns, empty if unknown, or agree on a schema without them
    """


class ExportError(InputError):
    """A forest cannot be expressed in another format, or its copy predicts differently.

    Examples
    --------
    >>> import polars as pl
    >>> import silvan as sv
    >>> table = pl.DataFrame({"ward": ["east", "west"] * 10})
    >>> model = sv.ForestClassifier(n_estimators=2).fit(table, [0, 1] * 10)
    >>> try:
    ...     model.forest_.to_sklearn()
    ... except sv.ExportError as error:
    ...     print(str(error)[:85])
    scikit-learn's trees cannot split by category, as this forest does on 'ward'; use to_
    """


class FormatError(SilvanError, ValueError):
    """A file or message from outside is damaged, forged or of another kind.

    Examples
    --------
    >>> import silvan as sv
    >>> try:
    ...     sv.Forest.from_bytes(b"something else")
    ... except sv.FormatError as error:
    ...     print(error)
    damaged, or not a silvan forest
    """


def reject(wrong: object, text: str) -> None:
    """Raise ``FormatError`` with a text if ``wrong`` is true."""
    if wrong:
        raise FormatError(text)


class VersionError(FormatError):
    """A file was written in another version of its format.

    Examples
    --------
    >>> import silvan as sv
    >>> forest = sv.ForestRegressor(n_estimators=1).fit([[0.0], [1.0]], [0.0, 1.0]).forest_
    >>> from_the_future = forest.to_bytes().replace(b'"version":"1"', b'"version":"9"')
    >>> try:
    ...     sv.Forest.from_bytes(from_the_future)
    ... except sv.VersionError as error:
    ...     print(error)
    written in version 9 of the format, this silvan reads 1; use the silvan that wrote it
    """


class DamagedError(FormatError):
    """A site's own record is damaged, was changed by somebody else, or was replaced by an older copy."""


class CipherError(FormatError):
    """Ciphertexts are out of range, encrypted with another key, or have wrong contents."""


class WireError(FormatError):
    """The bytes of a message cannot be read.

    Examples
    --------
    >>> import silvan as sv
    >>> from silvan.federation.message import Envelope
    >>> from silvan.federation.wire import decode
    >>> try:
    ...     decode(b"not a message", Envelope)
    ... except sv.WireError as error:
    ...     print(error)
    not what Envelope should be, or cut short
    """


class FederationError(SilvanError):
    """A study cannot continue.

    Examples
    --------
    >>> import polars as pl
    >>> import silvan as sv
    >>> north = pl.DataFrame({"age": [30, 40, 50, 60], "label": [0, 1, 0, 1]})
    >>> tables = {"north": north, "south": north.drop("label")}
    >>> try:
    ...     sv.federate_rows(tables, quorum=2)
    ... except sv.FederationError as error:
    ...     print(str(error)[:60])
    1 of 2 sites is left at Describe, the quorum is 2: site 'sou
    """


class AgreementError(FederationError):
    """The sites' tables are incompatible.

    Examples
    --------
    >>> import polars as pl
    >>> import silvan as sv
    >>> north = pl.DataFrame({"age": [30, 40, 50, 60], "label": [0, 1, 0, 1]})
    >>> south = pl.DataFrame({"age": [35, 45, 55, 65], "label": ["no", "yes", "no", "yes"]})
    >>> try:
    ...     sv.federate_rows({"north": north, "south": south})
    ... except sv.AgreementError as error:
    ...     print(error)
    the classes of 'label' are text at south and numbers at north; make them alike
    """


class RefusedError(FederationError):
    """A site refused to answer; its reason comes from a fixed list and contains no data.

    Parameters
    ----------
    text
        The message.
    site
        The site that refused; None at the site itself.
    reason
        The site's reason; by default the message.

    Examples
    --------
    >>> import polars as pl
    >>> import silvan as sv
    >>> north = pl.DataFrame({"age": [30, 40, 50, 60], "label": [0, 1, 0, 1]})
    >>> try:
    ...     sv.federate_rows({"north": north}, policy=sv.Policy(messages=["CountRows"]))
    ... except sv.RefusedError as error:
    ...     print(error)
    site 'north' refused Describe: the site's policy does not allow Describe
    """

    def __init__(self, text: str, *, site: str | None = None, reason: str | None = None) -> None:
        super().__init__(text)
        self.site, self.reason = site, text if reason is None else reason


class RepeatedError(RefusedError):
    """A message arrived twice, or after a newer one."""


class SiteError(FederationError):
    """A site failed, stalled or sent an invalid reply.

    Parameters
    ----------
    site
        The site's name.
    text
        What happened; the message is this text after the site's name.
    code
        The kind of problem that the site reports, such as "schema"; empty if it reports nothing.
    owner_hint
        What only the site's owner learns, such as "where"; empty if there is nothing more.

    Examples
    --------
    >>> import polars as pl
    >>> import silvan as sv
    >>> north = pl.DataFrame({"age": [30, 40, 50, 60], "label": [0, 1, 0, 1]})
    >>> try:
    ...     sv.federate_rows({"north": north, "south": north.drop("label")})
    ... except sv.SiteError as error:
    ...     print(error.site)
    south
    """

    def __init__(self, site: str, text: str, *, code: str = "", owner_hint: str = "") -> None:
        more = f"; its owner sees {owner_hint}" if owner_hint else ""
        super().__init__(f"site {site!r}: {text}{more}")
        self.site, self.text, self.code, self.owner_hint = site, text, code, owner_hint
