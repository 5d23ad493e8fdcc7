"""What sites agree on before training: one schema, how tables differ, and who holds which columns.

Importing this package registers what sites answer about their tables.
"""

import silvan.federation.agreement.describe  # noqa: F401
