"""Callbacks of other frameworks in hookline's loops."""

from hookline.compat.base import wrap

__all__ = ["wrap"]
