"""Test predictions as an npz file: plain arrays, equal bytes for equal arrays."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnbench.errors import AttnbenchError, one_line

Arrays = Mapping[str, np.ndarray[Any, Any]]

#: The date in every zip entry, the earliest the format knows, so that equal arrays give equal bytes.
_NO_DATE = (1980, 1, 1, 0, 0, 0)
#: What NumPy and zipfile raise for content that is not theirs.
_FOREIGN = (ValueError, TypeError, OSError, EOFError, KeyError, RuntimeError, MemoryError, struct.error)


def pack(predictions: Arrays) -> bytes:
    """An npz file that depends on the arrays alone: no date, no compression library, names in order.

    Raises:
        AttnbenchError: an array holds Python objects.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(predictions):
            entry = zipfile.ZipInfo(f"{name}.npy", _NO_DATE)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            content = io.BytesIO()
            try:
                np.lib.format.write_array(content, np.asarray(predictions[name], order="C"), allow_pickle=False)
            except ValueError:
                raise AttnbenchError(f"predictions {name!r} hold Python objects; give numbers or text") from None
            archive.writestr(entry, content.getvalue())
    return buffer.getvalue()


def unpack(packed: bytes, where: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays by name. Nothing compressed is opened: `pack` compresses nothing, and few bytes could fill the memory.

    Raises:
        AttnbenchError: no npz file of plain arrays; names `where`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("compressed")
        with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (*_FOREIGN, zipfile.BadZipFile) as error:
        raise AttnbenchError(f"{where}: not plain arrays ({one_line(error)}); run the cell again") from None


def sha_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
