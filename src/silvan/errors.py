"""Every error silvan raises on purpose.

::

    SilvanError
    ├── InputError (ValueError)      what you passed: a table, a column, a parameter
    │   ├── SchemaError              a table and a schema disagree
    │   └── ExportError              a forest that another format cannot express
    ├── FormatError (ValueError)     a file or a message from outside that is not what it claims to be
    │   ├── VersionError             written by a newer version
    │   ├── CipherError              ciphertexts out of range, of another key, or not what they should add up to
    │   └── WireError                bytes of a message that cannot be read
    └── FederationError              a study cannot go on
        ├── AgreementError           the sites' tables do not fit together
        ├── RefusedError             a site refused, and says why
        │   └── RepeatedError        a message that came before, or after a newer one
        └── SiteError                a site failed, stalled or answered nonsense; ``site`` names it

An error names the parameter, column or field, what was received, and what to do. ``InputError`` means that
you can correct it here; ``FormatError`` that whoever made the file or message has to; ``FederationError`` that
another site is involved.
"""


class SilvanError(Exception):
    """Base of all errors raised on purpose."""


class InputError(SilvanError, ValueError):
    """Something passed by the caller cannot be used."""


class SchemaError(InputError):
    """A table and a schema disagree."""


class ExportError(InputError):
    """A forest cannot be expressed in the format asked for, or its copy does not answer the same."""


class FormatError(SilvanError, ValueError):
    """A file or message from outside is damaged, forged or of another kind."""


class VersionError(FormatError):
    """A file was written by a newer version of silvan."""


class CipherError(FormatError):
    """Ciphertexts are out of range, made with another key, or hold something else than they should."""


class WireError(FormatError):
    """The bytes of a message cannot be read."""


class FederationError(SilvanError):
    """A study cannot go on."""


class AgreementError(FederationError):
    """The sites' tables do not fit together."""


class RefusedError(FederationError):
    """A site refused to answer; its reason is one of a fixed list and holds no data."""


class RepeatedError(RefusedError):
    """A message came a second time, or after one that was sent later."""


class SiteError(FederationError):
    """A site failed, stalled or answered nonsense."""

    def __init__(self, site: str, text: str) -> None:
        super().__init__(f"site {site!r}: {text}")
        self.site = site
