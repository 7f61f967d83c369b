"""Callbacks of other frameworks in hookline's own loops."""

from hookline.compat.base import wrap

__all__ = ["wrap"]
