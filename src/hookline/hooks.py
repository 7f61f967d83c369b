"""Hooks for workers and loops: objects that decide (`should_run`) and act (`run`) on a context."""

from hookline.core.hook import (
    CheckpointHook,
    CompositeHook,
    Hook,
    HookContext,
    HookManager,
    LoggingHook,
    MetricsHook,
    PeriodicHook,
    load_hooks,
)

__all__ = [
    "CheckpointHook",
    "CompositeHook",
    "Hook",
    "HookContext",
    "HookManager",
    "LoggingHook",
    "MetricsHook",
    "PeriodicHook",
    "load_hooks",
]
