"""The points of a process at which it can be killed, or its disk made full: around and within every durable operation.

Operations are counted by name from 1, and each has a point before and after it: ``before:fsync#2`` is the moment before
the second ``fsync``. Writes have a third point, ``torn:write#k``: half of the bytes are in the file.

=============  ================================================================
name           operation
=============  ================================================================
``write``      writes to unbuffered files (as the ledger's) and ``os.write``
``truncate``   truncation of an unbuffered file
``fsync``      ``os.fsync``, ``os.fdatasync``
``replace``    ``os.replace``, ``os.rename`` and the methods of `Path` for them
``unlink``     ``os.unlink``, ``os.remove`` and the method of `Path`
=============  ================================================================

Functions and methods that the caller names as ``module:attribute`` or ``module:Class.method`` become operations of that
name after the colon, such as ``before:Server.step#3``.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import io
import os
import resource
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Self
from unittest import mock


def kill_this_process() -> None:
    """End this process as the kernel does when memory runs out: no handler runs, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def fill_the_disk(room: int = 0) -> None:
    """Let no file of this process grow beyond ``room`` bytes from now on, in whatever language it is written.

    The kernel refuses with EFBIG where a full disk gives ENOSPC, after it took what there was room for; unlike a full
    disk it needs no rights to set up.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


class CrashPoints:
    """Count the durable operations within a ``with`` block, and act at one point.

    Parameters
    ----------
    at
        The point where ``act`` is called, such as ``torn:write#3``; nothing is done without it.
    act
        What happens there: `kill_this_process`, `fill_the_disk`, or a function that raises an `OSError`.
    also
        More operations, as ``module:attribute`` or ``module:Class.method``.

    Attributes
    ----------
    seen
        All points passed, in order.
    """

    def __init__(
        self, at: str | None = None, act: Callable[[], None] = kill_this_process, also: Sequence[str] = ()
    ) -> None:
        self.at, self.act, self.also = at, act, tuple(also)
        self.seen: list[str] = []
        self._counts: Counter[str] = Counter()
        self._patches = ExitStack()

    def __enter__(self) -> Self:
        for name, owner, attribute in (
            ("fsync", os, "fsync"),
            ("fsync", os, "fdatasync"),
            ("replace", os, "replace"),
            ("replace", os, "rename"),
            ("unlink", os, "unlink"),
            ("unlink", os, "remove"),
        ):
            if hasattr(os, attribute):
                self._patch(owner, attribute, self._around(name, getattr(owner, attribute)))
        for operation in self.also:
            module, _, path = operation.partition(":")
            *outer, attribute = path.split(".")
            owner = importlib.import_module(module)
            for part in outer:
                owner = getattr(owner, part)
            if not inspect.isfunction(inspect.getattr_static(owner, attribute)):
                msg = f"Expected {operation} to be a function or a method of instances."
                raise TypeError(msg)
            self._patch(owner, attribute, self._around(path, getattr(owner, attribute)))
        self._patch_writes()
        return self

    def __exit__(self, *details: object) -> None:
        self._patches.close()

    def _patch(self, owner: Any, attribute: str, new: Any) -> None:
        self._patches.enter_context(mock.patch.object(owner, attribute, new))

    def _reach(self, when: str, name: str, number: int) -> bool:
        """Note a point; tell whether it is the one to act at."""
        point = f"{when}:{name}#{number}"
        self.seen.append(point)
        return point == self.at

    def _number(self, name: str) -> int:
        self._counts[name] += 1
        return self._counts[name]

    def _around(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **keywords: Any) -> Any:
            number = self._number(name)
            if self._reach("before", name, number):
                self.act()
            result = operation(*arguments, **keywords)
            if self._reach("after", name, number):
                self.act()
            return result

        return counted

    def _written(self, write: Callable[[memoryview], int | None], data: Any) -> int | None:
        """Write bytes; at a torn point half of them, as the kernel does when the disk fills up."""
        number = self._number("write")
        if self._reach("before", "write", number):
            self.act()
        content = memoryview(data).cast("B")
        if self._reach("torn", "write", number):
            count = write(content[: len(content) // 2])
            self.act()
            return count
        count = write(content)
        if self._reach("after", "write", number):
            self.act()
        return count

    def _patch_writes(self) -> None:
        points, plain_open, plain_write = self, io.open, os.write

        class Raw(io.FileIO):
            def write(self, data: Any, /) -> int:
                return points._written(super().write, data) or 0

            def truncate(self, size: int | None = None, /) -> int:
                plain: Callable[..., int] = points._around("truncate", super().truncate)
                return plain(size)

        def opened(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **keywords: Any) -> Any:
            if buffering == 0 and set(mode) & set("wax+"):
                return Raw(file, mode)
            return plain_open(file, mode, buffering, *more, **keywords)

        self._patch(io, "open", opened)
        self._patch(builtins, "open", opened)
        self._patch(os, "write", lambda handle, data: points._written(lambda part: plain_write(handle, part), data))
