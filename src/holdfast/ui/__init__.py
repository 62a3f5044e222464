"""The operator's pages (extra ``serve``): HTML over the same views as everything else."""

from holdfast.ui.app import Pages
from holdfast.ui.render import alone

__all__ = ["Pages", "alone"]
