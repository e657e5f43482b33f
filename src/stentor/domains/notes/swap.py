"""Renames that exchange two names at once, where the kernel can: Linux since 3.15.

With an exchange nobody's bytes are ever overwritten unseen: what was under the name is afterwards
under the other one, and can be compared and put back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

_NOREPLACE, _EXCHANGE = 1, 2


def exchange(folder: int, one: str, other: str) -> bool:
    """Exchange two names in an open folder; False when this system cannot. Raises OSError, FileNotFoundError."""
    return _rename(folder, one, other, _EXCHANGE)


def place(folder: int, one: str, other: str) -> bool:
    """Rename where nothing is; False when this system cannot be sure. Raises FileExistsError, OSError."""
    return _rename(folder, one, other, _NOREPLACE)


def _rename(folder: int, one: str, other: str, flags: int) -> bool:
    if _call is None:
        return False
    if _call(folder, os.fsencode(one), folder, os.fsencode(other), flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False  # this file system has no such rename
    raise OSError(number, os.strerror(number), one, None, other)


def _load() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux":
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return function


_call = _load()
