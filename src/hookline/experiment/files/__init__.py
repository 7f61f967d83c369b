"""Experiments from configuration files."""
