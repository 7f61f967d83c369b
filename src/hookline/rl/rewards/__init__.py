"""Reward functions: recording their values per sample, a library of them, configuration and statistics."""
