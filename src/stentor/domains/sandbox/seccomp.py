"""The system call filter of sandboxes: denied calls, compiled to a seccomp program. Pure, except `open_filter`.

Namespaces alone are not enough: inside its own, a process could trace others, create further namespaces and reach
rarely used parts of the kernel. The filter is classic BPF over `struct seccomp_data`: number at offset 0,
architecture at 4, arguments of 8 bytes each from 16 on, low half first. Source: seccomp(2), linux/seccomp.h.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Sequence

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
"""TIOCSTI and TIOCLINUX, which can type into another process's terminal."""

# The name, its number on x86-64, its number on arm64 (None where it does not exist).
_DENIED: tuple[tuple[str, int | None, int | None], ...] = (
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
    # Memory that stays when it is mapped nowhere, so that no limit of a process counts it.
    ("shmget", 29, 194),
    ("semget", 64, 190),
    ("msgget", 68, 186),
    ("memfd_create", 319, 279),
    ("memfd_secret", 447, 447),
    ("iopl", 172, None),
    ("ioperm", 173, None),
    ("modify_ldt", 154, None),
    ("uselib", 134, None),
)


class Architecture(msgspec.Struct, frozen=True):
    """Constants of a processor architecture; `column` is the index of its numbers in a row of _DENIED."""

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


def is_supported() -> bool:
    """Return whether there is a filter for the host's architecture."""
    return platform.machine() in ARCHITECTURES


def build_filter(machine: str = "") -> bytes:
    """Build the filter for an architecture, by default the host's. A call of another architecture kills the process."""
    architecture = ARCHITECTURES[machine or platform.machine()]
    code = [
        _instruction(_LOAD, 4),
        _instruction(_EQUAL, architecture.audit, 1, 0),
        _instruction(_RETURN, KILL),
        _instruction(_LOAD, 0),
    ]
    if architecture.has_x32:  # the same calls under other numbers would bypass the list
        code += [_instruction(_AT_LEAST, X32_BIT, 0, 1), _instruction(_RETURN, KILL)]
    for row in _DENIED:
        number = row[architecture.column]
        if isinstance(number, int):
            code += _deny(number, EPERM)
    # The flags of clone3 are in memory, which a filter cannot read; libraries fall back to clone at ENOSYS.
    code += _deny(_CLONE3, NOSYS)
    namespace_flags = _instruction(_ANY_BIT, NAMESPACE_FLAGS, 0, 1)
    code += _for_call(architecture.clone, [_load_argument(0), namespace_flags, _instruction(_RETURN, EPERM)])
    for number in (architecture.socket, architecture.socketpair):
        code += _for_call(number, [_load_argument(0), *_allow_only(ADDRESS_FAMILIES, NO_FAMILY)])
    socket_type = [_load_argument(1), _instruction(_AND, 0xF)]  # the other bits are flags such as SOCK_NONBLOCK
    code += _for_call(architecture.socket, [*socket_type, *_allow_only(SOCKET_TYPES, EPERM)])
    ioctls = [instruction for request in TERMINAL_IOCTLS for instruction in _deny(request, EPERM)]
    code += _for_call(architecture.ioctl, [_load_argument(1), *ioctls])
    return b"".join([*code, _instruction(_RETURN, ALLOW)])


def open_filter() -> int:
    """Write the filter to a new file in memory and return its descriptor, which the caller must close."""
    descriptor = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    os.write(descriptor, build_filter())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _instruction(code: int, value: int, skip_if_true: int = 0, skip_if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, skip_if_true, skip_if_false, value)


def _load_argument(index: int) -> bytes:
    return _instruction(_LOAD, 16 + 8 * index)


def _deny(value: int, action: int) -> list[bytes]:
    """Return the action if the loaded value is this one."""
    return [_instruction(_EQUAL, value, 0, 1), _instruction(_RETURN, action)]


def _for_call(number: int, body: list[bytes]) -> list[bytes]:
    """Run instructions for one call only and load the call's number again afterwards."""
    return [_instruction(_EQUAL, number, 0, len(body) + 1), *body, _instruction(_LOAD, 0)]


def _allow_only(values: Sequence[int], action: int) -> list[bytes]:
    """Return the action unless the loaded value is one of these."""
    tests = [_instruction(_EQUAL, value, len(values) - n, 0) for n, value in enumerate(values)]
    return [*tests, _instruction(_RETURN, action)]
