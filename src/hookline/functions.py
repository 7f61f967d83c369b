"""Plain functions as subscribers: loggers ``fn(report_data, step)`` and hooks ``fn(worker, report_data)``."""

from hookline._engine.functions import HOOK_FUNCTIONS, FunctionCallback, HookFunction, LoggerFunction, hook_functions

__all__ = ["HOOK_FUNCTIONS", "FunctionCallback", "HookFunction", "LoggerFunction", "hook_functions"]
