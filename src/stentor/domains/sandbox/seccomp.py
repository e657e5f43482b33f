"""The system calls that a cage refuses, as a filter for the kernel. Pure.

Namespaces alone are not enough: within its own, a process could trace others, make further namespaces and reach
rarely used parts of the kernel. The filter is classic BPF over `struct seccomp_data`: number at offset 0,
architecture at 4, arguments of 8 bytes each from 16 on, low half first. Source: seccomp(2), linux/seccomp.h.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Iterable

import msgspec

ALLOW, KILL, ERRNO = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
EPERM, NOSYS, NO_FAMILY = (ERRNO | code for code in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NAMESPACE_FLAGS = 0x7E02_0000
"""All CLONE_NEW* flags."""
X32_BIT = 0x4000_0000
ADDRESS_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6. Others, such as AF_VSOCK, are not all bound to the network namespace."""
SOCKET_TYPES = (1, 2, 5)
"""SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET: no raw sockets."""
TERMINAL_IOCTLS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: typing into somebody else's terminal."""

# The name, its number on x86-64, its number on arm64 (None where it does not exist).
_REFUSED: tuple[tuple[str, int | None, int | None], ...] = (
    ("ptrace", 101, 117),
    ("process_vm_readv", 310, 270),
    ("process_vm_writev", 311, 271),
    ("process_madvise", 440, 440),
    ("pidfd_getfd", 438, 438),
    ("kcmp", 312, 272),
    ("unshare", 272, 97),
    ("setns", 308, 268),
    ("mount", 165, 40),
    ("umount2", 166, 39),
    ("pivot_root", 155, 41),
    ("chroot", 161, 51),
    ("move_mount", 429, 429),
    ("open_tree", 428, 428),
    ("open_tree_attr", 467, 467),
    ("fsopen", 430, 430),
    ("fsconfig", 431, 431),
    ("fsmount", 432, 432),
    ("fspick", 433, 433),
    ("mount_setattr", 442, 442),
    ("open_by_handle_at", 304, 265),
    ("name_to_handle_at", 303, 264),
    ("add_key", 248, 217),
    ("request_key", 249, 218),
    ("keyctl", 250, 219),
    ("bpf", 321, 280),
    ("perf_event_open", 298, 241),
    ("userfaultfd", 323, 282),
    ("io_uring_setup", 425, 425),
    ("io_uring_enter", 426, 426),
    ("io_uring_register", 427, 427),
    ("fanotify_init", 300, 262),
    ("lookup_dcookie", 212, 18),
    ("kexec_load", 246, 104),
    ("kexec_file_load", 320, 294),
    ("init_module", 175, 105),
    ("finit_module", 313, 273),
    ("delete_module", 176, 106),
    ("reboot", 169, 142),
    ("swapon", 167, 224),
    ("swapoff", 168, 225),
    ("acct", 163, 89),
    ("quotactl", 179, 60),
    ("quotactl_fd", 443, 443),
    ("syslog", 103, 116),
    ("settimeofday", 164, 170),
    ("clock_settime", 227, 112),
    ("clock_adjtime", 305, 266),
    ("adjtimex", 159, 171),
    ("sethostname", 170, 161),
    ("setdomainname", 171, 162),
    ("personality", 135, 92),
    ("vhangup", 153, 58),
    ("mbind", 237, 235),
    ("set_mempolicy", 238, 237),
    ("migrate_pages", 256, 238),
    ("move_pages", 279, 239),
    ("iopl", 172, None),
    ("ioperm", 173, None),
    ("modify_ldt", 154, None),
    ("uselib", 134, None),
)


class Architecture(msgspec.Struct, frozen=True):
    """`column` is the place of its numbers in a row of the table."""

    audit: int
    column: int
    clone: int
    socket: int
    socketpair: int
    ioctl: int
    has_x32: bool = False


ARCHITECTURES = {
    "x86_64": Architecture(0xC000_003E, 1, clone=56, socket=41, socketpair=53, ioctl=16, has_x32=True),
    "aarch64": Architecture(0xC000_00B7, 2, clone=220, socket=198, socketpair=199, ioctl=29),
}
_CLONE3 = 435


def refused_calls() -> tuple[str, ...]:
    """The names of the calls that are always refused."""
    return tuple(name for name, *_ in _REFUSED)


def is_supported(machine: str = "") -> bool:
    """Whether there is a filter for this kind of processor."""
    return (machine or platform.machine()) in ARCHITECTURES


def build_filter(machine: str = "") -> bytes:
    """The filter for a kind of processor, the present one unless named. A call of another architecture kills."""
    kind = ARCHITECTURES[machine or platform.machine()]
    code = [_step(_LOAD, 4), _step(_EQUAL, kind.audit, 1, 0), _step(_RETURN, KILL), _step(_LOAD, 0)]
    if kind.has_x32:  # the same calls under other numbers
        code += [_step(_AT_LEAST, X32_BIT, 0, 1), _step(_RETURN, KILL)]
    for row in _REFUSED:
        number = row[kind.column]
        if isinstance(number, int):
            code += [_step(_EQUAL, number, 0, 1), _step(_RETURN, EPERM)]
    # Its flags lie in memory, which a filter cannot read; libraries fall back to clone.
    code += [_step(_EQUAL, _CLONE3, 0, 1), _step(_RETURN, NOSYS)]
    code += _block(kind.clone, [_argument(0), _step(_ANY_BIT, NAMESPACE_FLAGS, 0, 1), _step(_RETURN, EPERM)])
    for number in (kind.socket, kind.socketpair):
        code += _block(number, [_argument(0), *_only(ADDRESS_FAMILIES, NO_FAMILY)])
    code += _block(kind.socket, [_argument(1), _step(_AND, 0xF), *_only(SOCKET_TYPES, EPERM)])
    code += _block(kind.ioctl, [_argument(1), *(s for cmd in TERMINAL_IOCTLS for s in _refuse(cmd))])
    return b"".join([*code, _step(_RETURN, ALLOW)])


def open_filter() -> int:
    """The filter in a file of its own in memory, to be handed to a program and closed."""
    made = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    os.write(made, build_filter())
    os.lseek(made, 0, os.SEEK_SET)
    return made


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _argument(number: int) -> bytes:
    return _step(_LOAD, 16 + 8 * number)


def _block(number: int, body: list[bytes]) -> list[bytes]:
    """Steps for one call alone; the number is loaded again behind them."""
    return [_step(_EQUAL, number, 0, len(body) + 1), *body, _step(_LOAD, 0)]


def _only(values: Iterable[int], otherwise: int) -> list[bytes]:
    chosen = list(values)
    tests = [_step(_EQUAL, value, len(chosen) - n, 0) for n, value in enumerate(chosen)]
    return [*tests, _step(_RETURN, otherwise)]


def _refuse(value: int) -> list[bytes]:
    return [_step(_EQUAL, value, 0, 1), _step(_RETURN, EPERM)]
