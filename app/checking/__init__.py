"""Whether the chains of a configuration can be trusted: `copath check`.

Every upstream is asked, each alone, as one that nothing is known of, and blocks of it are rebuilt as for a proof.
"""

from .report import check
from .trial import UnknownName

__all__ = ["UnknownName", "check"]
