"""Files: the seam between the product and the disk [S-360], and the real disk behind it.

Nothing else in the package opens, writes, renames or syncs a file. `OsFs` is a thin wrapper over
`os`; the simulated disk, the fault injector and the order monitor of `topics.testing` implement the
same two protocols. Errors are plain `OSError`s: naming them is the caller's business.

    mode      opens                                        creates
    "r"       for reading                                  no
    "rw"      for reading and writing                      no
    "create"  for reading and writing, content untouched   yes, 0600

Both syncs mean *on the medium* [S-74]: on macOS that is `F_FULLFSYNC`, because its fsync stops at the
drive's cache. Any thread may call any method.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import resource
import stat
import struct
import subprocess
import sys
import uuid
import warnings
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from topics import paths

log = logging.getLogger("topics.fs")

Mode = Literal["r", "rw", "create"]
Advice = Literal["sequential", "random", "willneed", "dontneed"]
Bytes = bytes | bytearray | memoryview

FDS_KEPT = 4096
"""Files that stay open for reading where nobody says otherwise [S-155]."""


class File(Protocol):
    """An open file. No shared position exists: every transfer names its offset."""

    def pread(self, n: int, offset: int) -> bytes:
        """At most `n` bytes at `offset`; fewer at the end of the file."""
        ...

    def pwrite(self, data: Bytes, offset: int) -> int:
        """Write at `offset`; may be short."""
        ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, size: int) -> None:
        """Reserve `size` bytes of zeros for an empty file [W-12]; what it got on ENOSPC may stay."""
        ...

    def fdatasync(self) -> None: ...

    def fsync(self) -> None: ...

    def fadvise(self, offset: int, n: int, advice: Advice) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Fs(Protocol):
    """A tree of files. Paths are `/`-separated strings."""

    def open(self, path: str, mode: Mode) -> File: ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def listdir(self, path: str) -> list[str]: ...

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable; a directory that cannot be opened is an error [S-12]."""
        ...

    def makedirs(self, path: str) -> None:
        """Create the directory and its missing parents, 0700; existing ones are fine."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def lock(self, path: str) -> File:
        """Open like "create" and take the exclusive lock, or raise `BlockingIOError`; closing releases it."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def map(self, path: str) -> mmap.mmap | None:
        """Map a whole immutable file, private and copy-on-write; `None` means: use pread."""
        ...

    def point(self, name: str) -> None:
        """A named crash point [S-361]; does nothing on a real disk."""
        ...


def pwrite_all(file: File, data: Bytes, offset: int) -> None:
    """Write all of `data`, going on after short counts; a count of 0 is an error (13 §6)."""
    view = memoryview(data)
    while view:
        n = file.pwrite(view, offset)
        if n <= 0:
            raise no_progress()
        view = view[n:]
        offset += n


def no_progress() -> OSError:
    """What a write failed with that wrote nothing and said nothing."""
    return OSError(errno.EIO, "write made no progress")


def pread_all(file: File, n: int, offset: int) -> bytes:
    """Read `n` bytes, going on after short counts; fewer only at the end of the file."""
    first = file.pread(n, offset)
    if len(first) == n or not first:
        return first
    parts = [first]
    done = len(first)
    while done < n:
        part = file.pread(n - done, offset + done)
        if not part:
            break
        parts.append(part)
        done += len(part)
    return b"".join(parts)


def pread_exact(file: File, n: int, offset: int) -> bytes:
    """Read `n` bytes that are known to be there; a file that ends early is an error, never an empty answer."""
    data = pread_all(file, n, offset)
    if len(data) != n:
        raise OSError(errno.EIO, f"the file ends {n - len(data)} bytes early")
    return data


def replace_file(fs: Fs, path: str, data: bytes) -> None:
    """Make `path` hold `data`, durably, in one step: temporary file, fsync, rename, directory fsync."""
    temporary = paths.tmp(path)
    file = fs.open(temporary, "create")
    try:
        pwrite_all(file, data, 0)
        file.truncate(len(data))
        file.fsync()
    finally:
        close_quietly(file)
    fs.rename(temporary, path)
    fs.sync_dir(os.path.dirname(path) or ".")


class Regular(NamedTuple):
    """A small file of the operator's."""

    data: bytes
    others_read: bool
    """Anyone on the machine may read it."""


def read_regular(path: str, bytes_max: int) -> Regular:
    """The whole of a small regular file; what could block, such as a pipe, is refused like what is too long."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        data = pread_all(OsFile(fd), bytes_max + 1, 0)
    finally:
        os.close(fd)
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"it is longer than {bytes_max} bytes", path)
    return Regular(data, bool(mode & stat.S_IROTH))


def close_quietly(file: File) -> None:
    """Close a descriptor whose bytes are synced or were only read: an error has nothing left to tell."""
    try:
        file.close()
    except OSError as error:
        log.warning("closing a descriptor: %s", error)


def process_id() -> int:
    """The process this runs in; what was opened before a fork belongs to another one."""
    return os.getpid()


def boot_id() -> str:
    """Names this boot of the machine: as long as it lasts, so does the page cache [S-245]."""
    known = "/proc/sys/kernel/random/boot_id"
    if os.path.exists(known):
        with open(known, "rb") as file:
            return file.read().decode("ascii").strip()
    try:
        text = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        text = b""
    return text.decode("ascii").strip() or random_id()


def fds_permit(wanted: int | None) -> int:
    """How many files may stay open for reading [S-155]: as many as wanted, but half the descriptor limit at most."""
    wanted = FDS_KEPT if wanted is None else wanted
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if limit == resource.RLIM_INFINITY else min(wanted, limit // 2)


def maps_permit(wanted: int) -> int:
    """How many files may stay mapped: before Python 3.13 each mapping holds a descriptor, and others need some too."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if sys.version_info >= (3, 13) or limit == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(limit // 8, 1))


def random_id() -> str:
    """32 random hex digits."""
    return uuid.uuid4().hex


def ensure_dir(fs: Fs, path: str) -> None:
    """Create `path` durably: each missing level is made, then its parent synced [S-12].

    The parents of what already exists are synced too, because a process killed between its mkdir and
    its sync leaves an entry that the next machine crash would take away.
    """
    missing: list[str] = []
    base = path
    while not fs.exists(base):
        missing.append(base)
        base = os.path.dirname(base) or "."
    parent = os.path.dirname(base) or "."
    if parent != base:
        try:
            fs.sync_dir(parent)
        except PermissionError as error:
            # A directory that somebody else made and keeps to himself; nothing of ours is created in it.
            log.info("%s cannot be synced: %s", parent, error)
    for level in reversed(missing):
        fs.makedirs(level)
        fs.sync_dir(os.path.dirname(level) or ".")


def _load_fallocate() -> Callable[[int, int, int, int], int] | None:
    """The libc call, because `os.posix_fallocate` falls back to writing every block [W-12]."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    # The 64-bit entry point exists where `off_t` may be 32 bits wide (glibc); musl has only the plain one.
    call = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if call is None:
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    call.restype = ctypes.c_int
    return call  # type: ignore[no-any-return]


_FALLOCATE = _load_fallocate()


def allocate_linux(fd: int, size: int, fallocate: Callable[[int, int, int, int], int] | None = _FALLOCATE) -> None:
    """Reserve with fallocate; a filesystem that cannot gets a sparse file of that size."""
    if fallocate is None:
        os.posix_fallocate(fd, 0, size)
        return
    while fallocate(fd, 0, 0, size) != 0:
        code = ctypes.get_errno()
        if code == errno.EINTR:
            continue
        if code in (errno.EOPNOTSUPP, errno.EINVAL):
            os.ftruncate(fd, size)
            return
        raise OSError(code, os.strerror(code))


F_PREALLOCATE = 42
F_ALLOCATECONTIG, F_ALLOCATEALL, F_PEOFPOSMODE = 0x2, 0x4, 3


def allocate_macos(fd: int, size: int, control: Callable[[int, int, bytes], object] = fcntl.fcntl) -> None:
    """Reserve with F_PREALLOCATE, contiguous if possible, then set the size."""
    for flags in (F_ALLOCATECONTIG | F_ALLOCATEALL, F_ALLOCATEALL):
        try:
            control(fd, F_PREALLOCATE, struct.pack("=Iiqqq", flags, F_PEOFPOSMODE, 0, size, 0))
            break
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and flags == F_ALLOCATEALL:
                raise
    os.ftruncate(fd, size)


def _sync_macos(fd: int) -> None:
    """F_FULLFSYNC, or fsync with one warning where the filesystem refuses it [S-74]."""
    try:
        fcntl.fcntl(fd, 51)  # F_FULLFSYNC
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
            raise
        warnings.warn("this filesystem cannot flush the drive's cache (F_FULLFSYNC)", stacklevel=3)
        os.fsync(fd)


if sys.platform == "darwin":
    _fdatasync = _fsync = _sync_macos
    _allocate = allocate_macos
elif sys.platform.startswith("linux"):
    _fdatasync, _fsync = os.fdatasync, os.fsync
    _allocate = allocate_linux
else:
    _fdatasync, _fsync = getattr(os, "fdatasync", os.fsync), os.fsync
    _allocate = os.ftruncate


class OsFile:
    """A descriptor of the real disk."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def pread(self, n: int, offset: int) -> bytes:
        return os.pread(self.fd, n, offset)

    def pwrite(self, data: Bytes, offset: int) -> int:
        return os.pwrite(self.fd, data, offset)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def allocate(self, size: int) -> None:
        _allocate(self.fd, size)

    def fdatasync(self) -> None:
        _fdatasync(self.fd)

    def fsync(self) -> None:
        _fsync(self.fd)

    def fadvise(self, offset: int, n: int, advice: Advice) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.fd, offset, n, getattr(os, f"POSIX_FADV_{advice.upper()}"))

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def descriptor_of(file: File) -> int | None:
    """The descriptor of a file of the real disk, for who syncs it by itself; None: only the file can."""
    return file.fd if type(file) is OsFile and sys.platform == "linux" else None


_FLAGS = {"r": os.O_RDONLY, "rw": os.O_RDWR, "create": os.O_RDWR | os.O_CREAT}


def _make_dirs(path: str) -> None:
    """A directory and the missing ones above it, each 0700 [S-12]; `os.makedirs` leaves those above to the umask."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if above and above != path and not os.path.exists(above):
        _make_dirs(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


class OsFs:
    """The real disk. Relative paths mean what they meant when it was made: a later chdir moves nothing."""

    __slots__ = ("root",)

    def __init__(self) -> None:
        self.root = os.getcwd()

    def _at(self, path: str) -> str:
        return os.path.join(self.root, path)

    def open(self, path: str, mode: Mode) -> File:
        return OsFile(os.open(self._at(path), _FLAGS[mode] | os.O_CLOEXEC, 0o600))

    def rename(self, old: str, new: str) -> None:
        os.replace(self._at(old), self._at(new))

    def remove(self, path: str) -> None:
        os.unlink(self._at(path))

    def rmdir(self, path: str) -> None:
        os.rmdir(self._at(path))

    def listdir(self, path: str) -> list[str]:
        return os.listdir(self._at(path))

    def sync_dir(self, path: str) -> None:
        fd = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _fsync(fd)
        finally:
            os.close(fd)

    def makedirs(self, path: str) -> None:
        _make_dirs(self._at(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(self._at(path))

    def size(self, path: str) -> int:
        return os.stat(self._at(path)).st_size

    def lock(self, path: str) -> File:
        file = OsFile(os.open(self._at(path), _FLAGS["create"] | os.O_CLOEXEC, 0o600))
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        return file

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(self._at(path))
        return found.f_bavail * found.f_frsize

    def map(self, path: str) -> mmap.mmap | None:
        fd = os.open(self._at(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size == 0:
                return None
            if sys.version_info >= (3, 13):
                return mmap.mmap(fd, 0, access=mmap.ACCESS_COPY, trackfd=False)
            return mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)
        finally:
            os.close(fd)

    def point(self, name: str) -> None:
        return None
