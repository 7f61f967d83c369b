"""Callbacks of other frameworks in hookline's own loops."""

from hookline.integrations.foreign.wrapping import wrap

__all__ = ["wrap"]
