"""Rollouts: curricula, the worker that makes rollouts, scoring, and workers in other processes."""
