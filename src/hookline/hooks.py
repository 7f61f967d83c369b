"""Hooks for workers and loops: objects that decide (`should_run`) and act (`run`) on a context."""

from hookline._engine.hook_manager import CompositeHook, HookManager
from hookline._engine.hooks import CheckpointHook, Hook, HookContext, LoggingHook, MetricsHook, PeriodicHook
from hookline.config.loading import load_hooks
from hookline.rl.hooks import EvaluationHook, create_default_evaluation_hooks

__all__ = [
    "CheckpointHook",
    "CompositeHook",
    "EvaluationHook",
    "Hook",
    "HookContext",
    "HookManager",
    "LoggingHook",
    "MetricsHook",
    "PeriodicHook",
    "create_default_evaluation_hooks",
    "load_hooks",
]
