"""Every error silvan raises on purpose.

::

    SilvanError
    ├── InputError (ValueError)      what you passed: a table, a column, a parameter
    │   ├── SchemaError              a table and a schema disagree
    │   └── ExportError              a forest that another format cannot express
    └── FormatError (ValueError)     a file or a message from outside that is not what it claims to be
        └── VersionError             written by a newer version

An error names the parameter, column or field, what was received, and what to do. ``InputError`` means that
you can mend it here; ``FormatError`` that whoever made the file or message has to.
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
    """A file or message from outside is damaged, doctored or of another kind."""


class VersionError(FormatError):
    """A file was written by a newer version of silvan."""
