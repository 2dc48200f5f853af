"""HDF5 files that are whole or not there: how result files are written and opened.

A file is built in memory and written to a temporary beside its target, which it replaces when it is safe
on disk. HDF5 itself never touches the disk for writing: it does not survive a full disk (the process
crashes at exit), and needs locks that shared file systems may not have.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import h5py
import numpy as np

from fedande_mpi.errors import DamagedFile, ResultsError
from fedande_mpi.schema import Array, Dimension, Field

# The name that makes netCDF readers take a scale for a bare dimension, with its size in ten places.
_BARE = "This is a netCDF dimension but not a netCDF variable.{:10d}"
_LARGE = 1 << 16  # bytes: larger datasets are compressed
_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


_TEMPORARY = re.compile(r"\..+\.\d+\.[\w-]+\.tmp")
_ABANDONED = 24 * 3600.0  # seconds after which a temporary is nobody's


def _remedy(error: OSError) -> str:
    if error.errno in _SPACE:
        return "free some space there or choose another directory, and run again: what was complete is kept"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return "a file is in the way where a directory is needed: choose another directory"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a directory you may write to"
    return "choose another directory, and run again: what was complete is kept"


def refusal(path: Path, error: OSError) -> ResultsError:
    """Return the error for a path that cannot be written: why, and what to do."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return ResultsError(f"{path}: cannot be written ({reason}); {_remedy(error)}")


def temporary_path(path: Path) -> Path:
    """Temporary that becomes `path`; its name carries host, process and SLURM job."""
    job = os.environ.get("SLURM_JOB_ID") or "0"
    return path.with_name(f".{path.stem}.{socket.gethostname()}.{os.getpid()}.{job}.tmp")


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        # Some file systems cannot sync a directory; there the rename is as safe as it gets.
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def _write_synced(path: Path, write: Callable[[BinaryIO], object]) -> None:
    with open(path, "wb") as stream:
        write(stream)
        stream.flush()
        os.fsync(stream.fileno())


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file as a whole, its directory too if needed; as :func:`write_whole`.

    Parameters
    ----------
    path : Path
    write : callable
        Writes the content to the binary stream it is given; may be called twice.
    """
    temporary = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_synced(temporary, write)
        try:
            os.replace(temporary, path)
        except FileNotFoundError:
            # this process stood still so long that another took the cell over and tidied up
            _write_synced(temporary, write)
            os.replace(temporary, path)
        _sync_directory(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise refusal(path, error) from error
        raise


def write_whole(path: Path, build: Callable[[h5py.File], None]) -> None:
    """Write an HDF5 file as a whole: a reader sees the old file or the new one, never a part.

    Parameters
    ----------
    path : Path
        Target; its directory is made if needed.
    build : callable
        Fills the open file. The file is held in memory until it is finished.

    Raises
    ------
    ResultsError
        If it cannot be written; the old file is intact and the temporary removed.
    """
    with h5py.File(
        path.name, "w", driver="core", backing_store=False, block_size=1 << 20, track_order=True
    ) as file:
        build(file)
        file.flush()
        content = file.id.get_file_image()
    write_bytes(path, content)


def write_bytes(path: Path, content: bytes) -> None:
    """Write these bytes as a whole file; as :func:`write_whole`."""
    write_file(path, lambda stream: stream.write(content))


def remove_leftovers(path: Path) -> None:
    """Remove the temporaries of a cell's file and its sidecars; for whoever has claimed the cell."""
    _remove_temporaries(path.parent, lambda entry: entry.name.startswith(f".{path.stem}."))


def remove_abandoned(directory: Path) -> None:
    """Remove temporaries of any cell that are older than a day."""
    now = time.time()  # not the file system's clock: they differ by minutes, not by a day
    _remove_temporaries(directory, lambda entry: now - entry.stat().st_mtime > _ABANDONED)


def _remove_temporaries(directory: Path, chosen: Callable[[os.DirEntry[str]], bool]) -> None:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # somebody else removes them too
                if _TEMPORARY.fullmatch(entry.name) and chosen(entry):
                    os.unlink(entry.path)


def check_writable(directory: str | Path) -> None:
    """Make an output directory and try to write in it, before any work is done.

    Raises
    ------
    ResultsError
        If that fails; it names the directory and what to do.
    """
    directory = Path(directory)
    probe = temporary_path(directory / "probe")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"fedande")
        probe.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            probe.unlink()
        raise refusal(directory, error) from error


def check_still_there(directory: Path) -> None:
    """Refuse to write into an output directory that has vanished since the run began.

    Making it again would hide that everything else in it is gone, or fill the mount point of a file system.

    Raises
    ------
    ResultsError
    """
    if not directory.is_dir():
        raise ResultsError(
            f"{directory}: expected the directory of results, but it has vanished since the run began; bring it "
            "back (mount it, or move it to its place) and run again: what it holds is kept"
        )


@contextlib.contextmanager
def open_whole(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading.

    Whatever HDF5 says of a file it cannot read becomes one clear error.

    Raises
    ------
    ResultsError
        If it is absent, damaged, or no HDF5 file.
    """
    try:
        # Files are replaced, never changed in place, so a reader needs no lock. HDF5 given a stream takes
        # none, whatever HDF5_USE_FILE_LOCKING says and however this process has the file open elsewhere.
        with open(path, "rb") as stream, h5py.File(stream, "r") as file:
            yield file
    except FileNotFoundError as error:
        raise ResultsError(f"{path}: expected a result file, found none; check the path") from error
    except (PermissionError, IsADirectoryError) as error:
        raise ResultsError(
            f"{path}: cannot be read ({error.strerror}); check the path and its owner"
        ) from error
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise ResultsError(f"{path}: cannot be read ({os.strerror(error.errno)}); try again") from error
        reason = " ".join(str(error.args[0] if error.args else error).split())
        raise DamagedFile(
            f"{path}: expected a readable result file, but it is damaged or incomplete ({reason}); "
            "copy it again, or move it away and run again to compute it anew"
        ) from error


def create_scales(
    group: h5py.Group,
    dimensions: tuple[Dimension, ...],
    sizes: Mapping[str, int],
    values: Mapping[str, Array] | None = None,
) -> dict[str, h5py.Dataset]:
    """Create the dimension scales of a group: `values`, or 0, 1, 2 ... up to their size.

    Dimensions without a size are left out.
    """
    scales: dict[str, h5py.Dataset] = {}
    for dim in dimensions:
        if dim.name not in sizes:
            continue
        size = sizes[dim.name]
        if dim.coordinate:
            content = np.asarray((values or {}).get(dim.name, np.arange(size)), dtype=np.int64)
            chunks = content.shape if content.nbytes > _LARGE else None
            scale = _create(group, dim.name, content, chunks, fill=None)
            scale.make_scale(dim.name)
        else:
            # Never written, so HDF5 gives it no room.
            scale = group.create_dataset(dim.name, (size,), dtype="i1")
            scale.make_scale(_BARE.format(size))
        scale.attrs["units"] = "1"
        scale.attrs["description"] = dim.description
        scales[dim.name] = scale
    return scales


def create_field(
    group: h5py.Group, field: Field, content: Array, scales: Mapping[str, h5py.Dataset]
) -> h5py.Dataset:
    """Create a field's dataset with units, description and attached scales."""
    # One chunk for every (repeat, fold): it is either all fill or all there. Sidecars hold weights and
    # probabilities, which do not compress.
    large = content.nbytes > _LARGE and field.dims[0] == "repeat"
    leading = 2 if field.per_unit else 1
    chunks = (1,) * leading + content.shape[leading:] if large else None
    dataset = _create(group, field.path.lstrip("/"), content, chunks, None if field.is_text else field.fill)
    dataset.attrs["units"] = field.units
    dataset.attrs["description"] = field.description
    for axis, name in enumerate(field.dims):
        dataset.dims[axis].attach_scale(scales[name])
    return dataset


def _create(
    group: h5py.Group,
    path: str,
    content: Array,
    chunks: tuple[int, ...] | None,
    fill: float | int | str | None,
) -> h5py.Dataset:
    dtype = h5py.string_dtype("utf-8") if content.dtype == object else content.dtype
    if chunks is None or content.dtype == object:
        return group.create_dataset(path, data=content, dtype=dtype, fillvalue=fill)
    return group.create_dataset(
        path,
        data=content,
        fillvalue=fill,
        chunks=chunks,
        compression="gzip",
        compression_opts=4,
        shuffle=True,
    )
