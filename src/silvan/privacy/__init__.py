"""Protection of rows: keys between sites, matching of ids; gate, noise, hidden sums and encryption have folders.

Importing this package registers what sites answer about keys and ids, as importing ``silvan.algorithms`` does for the
messages of algorithms.
"""

import silvan.privacy.identity
import silvan.privacy.psi
import silvan.privacy.sampling_key  # noqa: F401
