"""Bytes in one folder, on local disk or in S3, where a name once created never changes.

A local file is created as a temporary file beside its final name, synced, then hard-linked: the link fails if the name
is taken, and a reader meets either nothing or the whole file. On S3 the same is a conditional put (`If-None-Match: *`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, BinaryIO, Protocol

from pipeline.errors import Unavailable, UsageError

TEMPORARY_PREFIX = ".tmp-"
_TEMPORARY = re.compile(re.escape(TEMPORARY_PREFIX) + "[0-9a-f]{32}")
_BUCKET = re.compile(r"s3://[A-Za-z0-9._-]+(/|$)")
BLOCK_BYTES = 1 << 20


class Storage:
    """One folder, named by a local path, a `file://` or an `s3://bucket/prefix` URI.

    Paths are relative to the folder and use `/`. An instance may be shared by threads; pickling it sends the URI alone,
    so that no connection ever crosses a process. Credentials and endpoint of S3 come from the environment (`AWS_…`).

    Every method raises `Unavailable` when the storage cannot be reached, refuses access, or has no such bucket, and
    `UsageError` where there can be no such folder.
    """

    def __init__(self, uri: str) -> None:
        """Raises UsageError for a scheme other than local and S3, or no bucket. Touches nothing yet."""
        self._backend: _Backend
        if uri.startswith("s3://"):
            if not _BUCKET.match(uri):
                raise UsageError(
                    f"{uri}: names no bucket as s3://BUCKET/FOLDER does, of letters, digits, '.', '-', '_'"
                )
            from pipeline.s3 import S3  # only where it is needed: botocore takes a second to import

            self.uri = uri.rstrip("/")
            self._backend = S3(self.uri)
        elif "://" in uri and not uri.startswith("file://"):
            raise UsageError(f"{uri}: only local folders and s3:// are supported")
        else:
            self.uri = os.path.abspath(uri.removeprefix("file://"))
            self._backend = _Local(self.uri)

    def __reduce__(self) -> tuple[type[Storage], tuple[str]]:
        return Storage, (self.uri,)

    def __repr__(self) -> str:
        return f"Storage({self.uri!r})"

    def read(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        return self._backend.read(_checked(path))

    def read_many(self, paths: list[str]) -> list[bytes]:
        """Whole small files, in the order asked for; on S3 at the same time. Raises FileNotFoundError."""
        return self._backend.read_many([_checked(path) for path in paths])

    def read_present(self, paths: list[str]) -> dict[str, bytes]:
        """Whole small files, those that are there; on S3 at the same time."""
        return self._backend.read_present([_checked(path) for path in paths])

    def exists(self, path: str) -> bool:
        return self._backend.size(_checked(path)) is not None

    def size(self, path: str) -> int:
        """Bytes. Raises FileNotFoundError."""
        size = self._backend.size(_checked(path))
        if size is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", f"{self.uri}/{path}")
        return size

    def modified(self, path: str) -> float:
        """When the file was last written, in seconds by the storage's own clock. Raises FileNotFoundError."""
        return self._backend.modified(_checked(path))

    def remove_unfinished(self, ours: Callable[[str], object]) -> list[str]:
        """Removes what killed writers left unfinished, and names it; nobody may be writing.

        Args:
            ours: whether a path is ours to remove: of a local temporary file, or what an upload to S3 was to become.
        """
        return self._backend.remove_unfinished(ours)

    def folders(self, path: str = "") -> list[str]:
        """Sorted names of the folders in a folder ('' or ending in '/'); none where there is no such folder."""
        return sorted(self._backend.folders(path))

    def list(self, prefix: str = "") -> list[str]:
        """Sorted paths of the files whose path begins with `prefix`, in all sub-folders, unfinished ones left out."""
        folder = prefix.rpartition("/")[0]
        found = (path for path in self._backend.walk(folder) if path.startswith(prefix))
        return sorted(path for path in found if not path.rpartition("/")[2].startswith(TEMPORARY_PREFIX))

    def sha256(self, path: str) -> str:
        """Hex digest of the file as the storage returns it, read in blocks. Raises FileNotFoundError."""
        return self._backend.sha256(_checked(path))

    def open(self, path: str) -> BinaryIO:
        """A seekable binary file to read from (pyarrow takes it). Raises FileNotFoundError."""
        return self._backend.open(_checked(path))

    def create(self, path: str, data: bytes) -> None:
        """Creates a small file, whole and durable or not at all. Raises FileExistsError where the name is taken."""
        self._backend.create(_checked(path), data)

    def upload(self, local_path: str, path: str) -> None:
        """As `create`, from a local file of any size."""
        self._backend.upload(local_path, _checked(path))

    def replace(self, path: str, data: bytes) -> None:
        """Creates or overwrites a small file; a reader meets the old content or the new."""
        self._backend.replace(_checked(path), data)

    def remove(self, path: str) -> None:
        """Removes a file; one that is not there is no error."""
        self._backend.remove(_checked(path))

    def remove_empty_folders(self) -> None:
        """Removes the folders that hold nothing, this one included; nobody may be writing. On S3 there are none."""
        self._backend.remove_empty_folders()


def file_sha256(local_path: str) -> str:
    """Hex digest of a local file."""
    with open(local_path, "rb") as file:
        return digest_of(file)


class _Backend(Protocol):
    """What a kind of storage must do; `size` is None and `remove` silent for a file that is not there."""

    def read(self, path: str) -> bytes: ...
    def read_many(self, paths: list[str]) -> list[bytes]: ...
    def read_present(self, paths: list[str]) -> dict[str, bytes]: ...
    def size(self, path: str) -> int | None: ...
    def modified(self, path: str) -> float: ...
    def walk(self, folder: str) -> Iterator[str]: ...
    def folders(self, path: str) -> list[str]: ...
    def sha256(self, path: str) -> str: ...
    def open(self, path: str) -> BinaryIO: ...
    def create(self, path: str, data: bytes) -> None: ...
    def upload(self, local_path: str, path: str) -> None: ...
    def replace(self, path: str, data: bytes) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_empty_folders(self) -> None: ...
    def remove_unfinished(self, ours: Callable[[str], object]) -> list[str]: ...


class _Local:
    def __init__(self, root: str) -> None:
        self._root = root

    def read(self, path: str) -> bytes:
        with self._reachable(), open(self._full(path), "rb") as file:
            return file.read()

    def read_many(self, paths: list[str]) -> list[bytes]:
        return [self.read(path) for path in paths]

    def read_present(self, paths: list[str]) -> dict[str, bytes]:
        found = {}
        for path in paths:
            with suppress(FileNotFoundError):
                found[path] = self.read(path)
        return found

    def size(self, path: str) -> int | None:
        with self._reachable():
            try:
                found = os.stat(self._full(path))
            except (FileNotFoundError, NotADirectoryError):
                return None
            return found.st_size if stat.S_ISREG(found.st_mode) else None

    def modified(self, path: str) -> float:
        with self._reachable():
            return os.stat(self._full(path)).st_mtime

    def walk(self, folder: str) -> Iterator[str]:
        for parent, _, names in os.walk(self._full(folder), onerror=self._refuse):
            for name in names:
                yield os.path.relpath(os.path.join(parent, name), self._root).replace(os.sep, "/")

    def folders(self, path: str) -> list[str]:
        with self._reachable():
            try:
                with os.scandir(self._full(path)) as entries:
                    return [entry.name for entry in entries if entry.is_dir()]
            except FileNotFoundError:
                return []

    def sha256(self, path: str) -> str:
        with self._reachable(), open(self._full(path), "rb") as file:
            return digest_of(file)

    def open(self, path: str) -> BinaryIO:
        with self._reachable():
            return open(self._full(path), "rb")

    def create(self, path: str, data: bytes) -> None:
        self._place(path, lambda file: file.write(data), self._link)

    def upload(self, local_path: str, path: str) -> None:
        def copy(file: IO[bytes]) -> None:
            with open(local_path, "rb") as source:
                shutil.copyfileobj(source, file, BLOCK_BYTES)

        self._place(path, copy, self._link)

    def replace(self, path: str, data: bytes) -> None:
        self._place(path, lambda file: file.write(data), os.replace)

    def remove(self, path: str) -> None:
        with self._reachable(), suppress(FileNotFoundError, NotADirectoryError):
            os.remove(self._full(path))

    def remove_empty_folders(self) -> None:
        for parent, _, _ in os.walk(self._root, topdown=False):
            with suppress(OSError):  # it holds something
                os.rmdir(parent)

    def remove_unfinished(self, ours: Callable[[str], object]) -> list[str]:
        found = [path for path in self.walk("") if _TEMPORARY.fullmatch(path.rpartition("/")[2]) and ours(path)]
        for path in found:
            self.remove(path)
        return found

    def _place(self, path: str, write: Callable[[IO[bytes]], object], publish: Callable[[str, str], None]) -> None:
        """Writes a synced temporary file beside the final name, then gives it that name."""
        final = self._full(path)
        folder = os.path.dirname(final)
        temporary = os.path.join(folder, f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
        with self._reachable():
            try:
                os.makedirs(folder, exist_ok=True)
            except (FileExistsError, FileNotFoundError) as error:  # a link to nowhere, or a place such as /proc
                raise UsageError(f"{folder}: this folder cannot be made ({error.strerror}); choose another") from None
            try:
                with open(temporary, "xb") as file:
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                publish(temporary, final)
                _sync_folder(folder)
            finally:
                with suppress(FileNotFoundError):
                    os.remove(temporary)

    def _link(self, temporary: str, final: str) -> None:
        try:
            os.link(temporary, final)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise Unavailable(
                    f"{self._root}: this file system has no hard links, so files cannot be created safely; "
                    "choose a folder on another one, or s3://"
                ) from error
            raise

    def _full(self, path: str) -> str:
        return os.path.join(self._root, path)

    def _refuse(self, error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise Unavailable(f"{error.filename}: {error.strerror}") from error

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        """Lets answers about one file pass; everything else the disk complains of is `Unavailable`.

        A file in the way of a folder is there to stay, and so a UsageError.
        """
        try:
            yield
        except (FileExistsError, FileNotFoundError):
            raise
        except NotADirectoryError as error:
            raise UsageError(f"{error.filename}: a file is in the way of this folder; choose another") from None
        except OSError as error:
            raise Unavailable(f"{error.filename or self._root}: {error.strerror or error}") from error


def _checked(path: str) -> str:
    """Keeps every access inside the folder. Raises ValueError."""
    parts = path.split("/")
    if not path or "" in parts or ".." in parts or "." in parts:
        raise ValueError(f"not a path within a storage: {path!r}")
    return path


def digest_of(file: IO[bytes]) -> str:
    """Hex sha256 of what is left to read of a file."""
    digest = hashlib.sha256()
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
