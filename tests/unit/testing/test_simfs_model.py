"""What a process reads is what POSIX says: the simulated disk against a plain model and against the real one."""

import errno
import random
import tempfile
from collections.abc import Callable
from typing import Any, Literal

from hypothesis import example, given, settings
from hypothesis import strategies as st

from topics.fs import Fs, OsFs
from topics.testing import SimFs

Op = tuple[Any, ...]
PATHS = ["x", "y", "d", "d/x", "d/y", "d/e", "d/e/x", "e"]


class Plain:
    """The reference: files are bytearrays, directories are dicts, handles are bytearrays. Answers or an errno."""

    def __init__(self) -> None:
        self.root: dict[str, Any] = {}
        self.handles: list[bytearray | None] = [None] * 3

    def parent(self, path: str) -> tuple[dict[str, Any], str]:
        node: Any = self.root
        *way, name = path.split("/")
        for level in way:
            if not isinstance(node, dict):
                raise OSError(errno.ENOTDIR, "")
            if level not in node:
                raise OSError(errno.ENOENT, "")
            node = node[level]
        if not isinstance(node, dict):
            raise OSError(errno.ENOTDIR, "")
        return node, name

    def open(self, handle: int, path: str, mode: str) -> None:
        parent, name = self.parent(path)
        if mode == "create" and name not in parent:
            parent[name] = bytearray()
        if name not in parent:
            raise OSError(errno.ENOENT, "")
        if isinstance(parent[name], dict):
            raise OSError(errno.EISDIR, "")
        self.handles[handle] = parent[name]

    def file(self, handle: int) -> bytearray:
        data = self.handles[handle]
        assert data is not None
        return data

    def pread(self, handle: int, n: int, offset: int) -> bytes:
        return bytes(self.file(handle)[offset : offset + n])

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        content = self.file(handle)
        if data:
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(data)] = data
        return len(data)

    def truncate(self, handle: int, size: int) -> None:
        content = self.file(handle)
        del content[size:]
        content.extend(bytes(size - len(content)))

    def allocate(self, handle: int, size: int) -> None:
        content = self.file(handle)
        content.extend(bytes(max(0, size - len(content))))

    def size_of(self, handle: int) -> int:
        return len(self.file(handle))

    def sync(self, handle: int) -> None:
        self.file(handle)

    def rename(self, old: str, new: str) -> None:
        source, name = self.parent(old)
        target, new_name = self.parent(new)
        if name not in source:
            raise OSError(errno.ENOENT, "")
        moved, replaced = source[name], target.get(new_name)
        if moved is replaced:
            return
        if isinstance(moved, dict) and (new + "/").startswith(old + "/"):
            raise OSError(errno.EINVAL, "")
        if isinstance(replaced, dict) and not isinstance(moved, dict):
            raise OSError(errno.EISDIR, "")
        if isinstance(moved, dict) and isinstance(replaced, bytearray):
            raise OSError(errno.ENOTDIR, "")
        if isinstance(replaced, dict) and replaced:
            raise OSError(errno.ENOTEMPTY, "")
        del source[name]
        target[new_name] = moved

    def remove(self, path: str) -> None:
        parent, name = self.parent(path)
        if name not in parent:
            raise OSError(errno.ENOENT, "")
        if isinstance(parent[name], dict):
            raise OSError(errno.EISDIR, "")
        del parent[name]

    def rmdir(self, path: str) -> None:
        parent, name = self.parent(path)
        if name not in parent:
            raise OSError(errno.ENOENT, "")
        if not isinstance(parent[name], dict):
            raise OSError(errno.ENOTDIR, "")
        if parent[name]:
            raise OSError(errno.ENOTEMPTY, "")
        del parent[name]

    def makedirs(self, path: str) -> None:
        node, names = self.root, path.split("/")
        for i, name in enumerate(names):
            below = node.setdefault(name, {})
            if not isinstance(below, dict):
                raise OSError(errno.EEXIST if i == len(names) - 1 else errno.ENOTDIR, "")
            node = below

    def node(self, path: str) -> Any:
        parent, name = self.parent(path)
        if name not in parent:
            raise OSError(errno.ENOENT, "")
        return parent[name]

    def listdir(self, path: str) -> list[str]:
        node = self.node(path)
        if not isinstance(node, dict):
            raise OSError(errno.ENOTDIR, "")
        return sorted(node)

    def exists(self, path: str) -> bool:
        try:
            self.node(path)
        except OSError:
            return False
        return True

    def size(self, path: str) -> int:
        node = self.node(path)
        return -1 if isinstance(node, dict) else len(node)

    def sync_dir(self, path: str) -> None:
        self.listdir(path)


class Through:
    """The same questions asked of an `Fs` below a base directory."""

    def __init__(self, fs: Fs, base: str) -> None:
        self.fs = fs
        self.base = base
        self.handles: list[Any] = [None] * 3
        self.sim = fs if isinstance(fs, SimFs) else None

    def at(self, path: str) -> str:
        return f"{self.base}/{path}"

    def open(self, handle: int, path: str, mode: Literal["rw", "create"]) -> None:
        file = self.fs.open(self.at(path), mode)
        self.close(handle)
        self.handles[handle] = file

    def close(self, handle: int) -> None:
        if self.handles[handle] is not None:
            self.handles[handle].close()

    def pread(self, handle: int, n: int, offset: int) -> bytes:
        return bytes(self.handles[handle].pread(n, offset))

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        return int(self.handles[handle].pwrite(data, offset))

    def truncate(self, handle: int, size: int) -> None:
        self.handles[handle].truncate(size)

    def allocate(self, handle: int, size: int) -> None:
        self.handles[handle].allocate(size)

    def size_of(self, handle: int) -> int:
        return int(self.handles[handle].size())

    def sync(self, handle: int) -> None:
        if self.sim is not None and self.sim.disk_calls % 3 == 0:
            # A failed sync of the kind that marks pages clean must not change what is read.
            self.sim.fail_sync("clean" if self.sim.disk_calls % 2 else "partial")
            try:
                self.handles[handle].fsync()
            except OSError:
                return
            raise AssertionError("the sync should have failed")
        self.handles[handle].fsync()

    def rename(self, old: str, new: str) -> None:
        self.fs.rename(self.at(old), self.at(new))

    def remove(self, path: str) -> None:
        self.fs.remove(self.at(path))

    def rmdir(self, path: str) -> None:
        self.fs.rmdir(self.at(path))

    def makedirs(self, path: str) -> None:
        self.fs.makedirs(self.at(path))

    def listdir(self, path: str) -> list[str]:
        return sorted(self.fs.listdir(self.at(path)))

    def exists(self, path: str) -> bool:
        return self.fs.exists(self.at(path))

    def size(self, path: str) -> int:
        try:
            self.fs.listdir(self.at(path))
        except NotADirectoryError:
            return self.fs.size(self.at(path))
        return -1

    def sync_dir(self, path: str) -> None:
        self.fs.sync_dir(self.at(path))


def run(subject: Plain | Through, ops: list[Op], between: Callable[[], None] = lambda: None) -> list[Any]:
    """Each operation's answer or errno; those on a handle that is not open are left out."""
    answers: list[Any] = []
    for name, *args in ops:
        if name in ("pread", "pwrite", "truncate", "allocate", "size_of", "sync") and subject.handles[args[0]] is None:
            continue
        try:
            answers.append((name, args[:1], getattr(subject, name)(*args)))
        except OSError as error:
            answers.append((name, args[:1], errno.errorcode[error.errno or 0]))
        between()
    return answers


handles = st.integers(0, 2)
paths = st.sampled_from(PATHS)
offsets = st.one_of(st.integers(0, 3000), st.sampled_from([0, 511, 512, 513, 1024, 4096]))
one_op = st.one_of(
    st.tuples(st.just("open"), handles, paths, st.sampled_from(["create", "create", "rw"])),
    st.tuples(st.just("pwrite"), handles, st.binary(max_size=3).map(lambda b: b * 400), offsets),
    st.tuples(st.just("pread"), handles, offsets, offsets),
    st.tuples(st.just("truncate"), handles, offsets),
    st.tuples(st.just("allocate"), handles, offsets.map(lambda n: n + 1)),
    st.tuples(st.just("size_of"), handles),
    st.tuples(st.just("sync"), handles),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.sampled_from(["remove", "rmdir", "makedirs", "listdir", "exists", "size", "sync_dir"]), paths),
)
some_ops = st.lists(one_op, max_size=30)


@settings(max_examples=300, deadline=None)
@given(ops=some_ops)
def test_a_process_reads_what_the_plain_model_says_whatever_images_are_taken_meanwhile(ops: list[Op]) -> None:
    fs = SimFs()
    assert run(Through(fs, ""), ops, lambda: void(fs.crash_image(1))) == run(Plain(), ops)


def void(_: object) -> None:
    return None


@settings(max_examples=150, deadline=None)
@example(ops=[("open", 0, "d", "create"), ("makedirs", "d/x")])
@example(ops=[("open", 0, "d", "create"), ("makedirs", "d/x/y"), ("makedirs", "d")])
@given(ops=some_ops)
def test_the_simulated_and_the_real_disk_answer_alike(ops: list[Op]) -> None:
    fs = SimFs()
    fs.makedirs("/base")
    with tempfile.TemporaryDirectory() as base:
        real, simulated = Through(OsFs(), base), Through(fs, "/base")
        try:
            assert run(real, ops) == run(simulated, ops)
        finally:
            for handle in range(3):
                real.close(handle)


@settings(max_examples=100, deadline=None)
@given(ops=some_ops)
def test_a_killed_process_finds_what_it_wrote_and_the_space_is_counted_right(ops: list[Op]) -> None:
    fs = SimFs()
    through = Through(fs, "")
    run(through, ops)
    for handle in range(3):
        through.close(handle)
    after = fs.kill_image()
    assert after.files() == fs.files()
    assert after.free_bytes("/") == fs.free_bytes("/")
    assert after.crash_image(3).files() == fs.crash_image(3).files()


def test_long_random_runs_agree_with_the_plain_model() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        ops: list[Op] = []
        for _ in range(300):
            handle, path, where = rng.randrange(3), rng.choice(PATHS), rng.randrange(5000)
            ops.append(
                rng.choice(
                    [
                        ("open", handle, path, "create"),
                        ("pwrite", handle, rng.randbytes(rng.choice([1, 100, 512, 2000])), where),
                        ("pwrite", handle, bytes(2048), where & ~511),
                        ("truncate", handle, where),
                        ("allocate", handle, where + 1),
                        ("sync", handle),
                        ("pread", handle, 8000, rng.choice([0, where])),
                        ("rename", path, rng.choice(PATHS)),
                        ("makedirs", path),
                        ("sync_dir", path),
                        ("remove", path),
                    ]
                )
            )
        fs = SimFs(seed)
        assert run(Through(fs, ""), ops, lambda fs=fs: void(fs.crash_image(1))) == run(Plain(), ops), seed  # type: ignore[misc]
