"""Bridges to other frameworks' trainers: a module each, imported by name, and what they have in common."""
