"""Calls of the public interface with arguments that it does not have: one message in place of a ``TypeError``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Signature, isfunction, signature
from typing import Any, TypeVar

from zetadp.base.validation import UserError, nearest

Called = TypeVar("Called", bound=Callable[..., Any])


def checked_calls(**parts: type) -> Callable[[Called], Called]:
    """Return a decorator for a public function or class: wrong arguments of a call become a `UserError`.

    Of a class, the constructor and all public methods are decorated.

    Parameters
    ----------
    **parts
        Class of each argument that takes an object of a public class. The message recognises an argument that belongs
        to this class.

    Examples
    --------
    >>> @checked_calls()
    ... def scale(value, *, factor=1):
    ...     return factor * value
    >>> scale(2, facter=3)
    Traceback (most recent call last):
    zetadp.base.validation.UserError: scale: Expected the arguments value, factor, found facter. Did you mean 'factor'?
    """

    def decorate(called: Called) -> Called:
        if not isinstance(called, type):
            return _checked(called, called.__name__, parts)
        for name, method in list(vars(called).items()):
            if name == "__init__":
                setattr(called, name, _checked(method, called.__name__, parts))
            elif isfunction(method) and not name.startswith("_"):
                setattr(called, name, _checked(method, name, {}))
        return called

    return decorate


def _checked(function: Called, name: str, parts: Mapping[str, type]) -> Called:
    """Return a function that compares its arguments with its signature first."""
    allowed = signature(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (as the function has them)
        try:
            allowed.bind(*args, **kwargs)
        except TypeError as error:
            raise UserError(f"{name}: {_explain(allowed, kwargs, parts, error)}") from error
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]  # the signature is the function's


def _explain(allowed: Signature, kwargs: Mapping[str, Any], parts: Mapping[str, type], error: TypeError) -> str:
    """Return what a call should have had, what it had, and the nearest argument."""
    names = [name for name in allowed.parameters if name != "self"]
    expected = f"Expected the arguments {', '.join(names)}" if names else "Expected no arguments"
    unknown = [name for name in kwargs if name not in names]
    if not unknown:
        return f"{expected}; {error}."
    part_of = {name: part for part, kind in parts.items() for name in signature(kind).parameters}
    choice, hint = nearest(unknown[0], [*names, *part_of]), ""
    if choice in names:
        hint = f" Did you mean {choice!r}?"
    elif choice is not None:
        part = part_of[choice]
        hint = f" Did you mean {part}=zetadp.{parts[part].__name__}({choice}=...)?"
    return f"{expected}, found {', '.join(unknown)}.{hint}"
