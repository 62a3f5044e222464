"""The operator's pages (extra ``serve``): HTML made from the same views as everything else."""

from holdfast.ui.app import Pages
from holdfast.ui.render import alone
from holdfast.ui.sessions import SHELF as SESSIONS
from holdfast.ui.sessions import sweep

__all__ = ["SESSIONS", "Pages", "alone", "sweep"]
