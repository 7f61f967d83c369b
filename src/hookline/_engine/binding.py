"""Determines the moments that a subscriber overrides and their arguments, when it is added.

A method may take fewer trailing arguments than its moment has. A method that cannot be called, that would get the wrong
argument under a right name, or whose name is not a moment, is an error here rather than a surprise at step 10,000. A
parameter with a default is the author's own (``lambda loop, name=name: ...``) unless it has the name of the argument at
its position.
"""

import dis
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hookline._engine.errors import MomentError, closest
from hookline._engine.moments import Moment
from hookline._engine.subscriber import Subscriber


@dataclass(frozen=True, slots=True)
class Binding:
    """One subscriber's method for one moment, and the arguments to call it with, as source text."""

    function: Callable[..., Any]
    arguments: tuple[str, ...]
    is_async: bool = False
    is_silent: bool = False


def bind(subscriber: Subscriber, moments: Mapping[str, Moment]) -> dict[str, Binding]:
    """Return the moments that ``subscriber`` overrides, each checked against the catalogue."""
    # A misspelled moment would never be called, and nothing would report it. Functions set on the instance count too.
    for name in dict.fromkeys([*dir(type(subscriber)), *vars(subscriber)]):
        if name.startswith("on_") and name not in moments and callable(getattr(subscriber, name)):
            raise MomentError(
                f"{type(subscriber).__name__}.{name} is not a moment. {closest(name, moments)} "
                "Something of your own needs another name, e.g. with a leading underscore."
            )
    return {
        name: bind_function(getattr(subscriber, name), moment, who=type(subscriber).__name__)
        for name, moment in moments.items()
        if _overrides(subscriber, name)
    }


def bind_function(function: Callable[..., Any], moment: Moment, *, who: str) -> Binding:
    """Check that ``function`` can be called at ``moment``, and with which arguments."""
    if not callable(function):
        raise MomentError(f"{who}.{moment.name} is {function!r}; a moment is a method: {moment.signature()}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-ins have none: pass all arguments
        return Binding(function, moment.arguments)
    arguments = _accepted(signature, moment)
    if arguments is None:
        name = getattr(function, "__name__", moment.name)
        raise MomentError(
            f"{who}: {name}{signature} cannot be called at the moment {moment.name}.\n"
            f"    it is defined as    {name}{signature}\n"
            f"    it is called as     {moment.signature()}\n"
            "Trailing arguments may be left off; their order may not change."
        )
    return Binding(function, arguments, is_async=is_async(function), is_silent=is_silent(function))


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call must be awaited: an ``async def``, or an object with an async ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def is_silent(function: Callable[..., Any]) -> bool:
    """Return whether the code can only return None; then the dispatcher skips the check of the result."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    # A call of these returns a generator or a coroutine, whatever the code returns.
    if code is None or code.co_flags & _NOT_PLAIN:
        return False
    # Read from the code, once per addition: an annotation may be missing or wrong. A false "no" costs a comparison per
    # call; a false "yes" would lose results, so everything unclear is "no".
    instructions = list(dis.get_instructions(code))
    returns = [i for i, instruction in enumerate(instructions) if instruction.opname.startswith("RETURN_")]
    return all(_returns_none(instructions, i) for i in returns)


_NOT_PLAIN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _returns_none(instructions: list[dis.Instruction], i: int) -> bool:
    here, before = instructions[i], instructions[i - 1]
    # Exists in some versions of Python only; the others load the constant first.
    if here.opname == "RETURN_CONST":
        return here.argval is None
    # If a jump leads to the return, the instruction before it is not the only source of the value.
    return not here.is_jump_target and before.opname == "LOAD_CONST" and before.argval is None


def _accepted(signature: inspect.Signature, moment: Moment) -> tuple[str, ...] | None:
    """Return the arguments to pass, or None if no call can work."""
    accepted: list[str] = []
    by_keyword: list[str] = []
    waiting = list(moment.arguments)
    for parameter in signature.parameters.values():
        required = parameter.default is parameter.empty
        if parameter.kind is parameter.VAR_POSITIONAL:
            # Everything that is left, in order: *args stands for the trailing arguments.
            accepted, waiting = accepted + waiting, []
        elif parameter.kind is parameter.VAR_KEYWORD:
            by_keyword += moment.keywords
        elif _by_keyword(parameter, moment):
            by_keyword.append(parameter.name)
            waiting = []  # later ones cannot be passed by position any more
        elif waiting and _fits(parameter, waiting[0], moment):
            accepted.append(waiting.pop(0))
        elif required or parameter.name in (*moment.arguments, *moment.keywords):
            return None  # nothing to pass, or a right name at a wrong position
        else:
            waiting = []  # the author's own default, and so are all after it
    # Once each: a named keyword is also among those that **kwargs asks for.
    return (*accepted, *(f"{name}={name}" for name in dict.fromkeys(by_keyword)))


def _fits(parameter: inspect.Parameter, argument: str, moment: Moment) -> bool:
    """Whether the parameter at the position of ``argument`` takes it: by that name, or by one of its own."""
    if parameter.kind is parameter.KEYWORD_ONLY:
        return False
    # A name of the moment at another position is not one of the author's own: it would get the wrong value.
    own = parameter.name not in (*moment.arguments, *moment.keywords)
    return parameter.name == argument or (own and parameter.default is parameter.empty)


def _by_keyword(parameter: inspect.Parameter, moment: Moment) -> bool:
    if parameter.kind is parameter.KEYWORD_ONLY:
        return parameter.name in (*moment.arguments, *moment.keywords)
    return parameter.name in moment.keywords and parameter.kind is not parameter.POSITIONAL_ONLY


def _overrides(subscriber: Subscriber, name: str) -> bool:
    """Whether the method is the subscriber's own rather than the no-op of a class that declares moments."""
    if name in vars(subscriber):
        return True
    # The nearest class decides: a base class further up that overrides the method is shadowed.
    for owner in type(subscriber).__mro__:
        if name in vars(owner):
            return not vars(owner).get("_declares_moments", False)
    return False
