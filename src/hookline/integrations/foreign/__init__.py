"""Callbacks of other frameworks in hookline's own loops."""

from hookline.integrations.foreign.stand_in import NotOfferedError
from hookline.integrations.foreign.wrapping import wrap

__all__ = ["NotOfferedError", "wrap"]
