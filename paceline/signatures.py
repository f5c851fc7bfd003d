"""Signs the files that this user writes, so that later commands recognise them.

The signature of `config.json` is in `config.json.sig`: the id of the user's secret, and an HMAC-SHA256 by that secret.
The secret is in ~/.config/paceline/secret, or below $XDG_CONFIG_HOME. A run signs its `config.json` and the
`manifest.json` of every checkpoint, which has the digests of all files of the checkpoint. Signatures stay valid when a
run folder is copied or moved as a whole.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import logging
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from paceline.files import replace_text

log = logging.getLogger(__name__)

SECRET_BYTES = 32


def sign(path: Path, write: Callable[[Path, str], object] = replace_text) -> None:
    """Sign a file that this user has just written. If there is no secret, warn once, and leave the file unsigned."""
    secret, signature = _secret(), _signature_path(path)
    if isinstance(secret, str):
        _warn_once(secret)
        signature.unlink(missing_ok=True)
    else:
        write(signature, f"{_id_of(secret)} {_digest(secret, path)}\n")


def why_foreign(path: Path) -> str | None:
    """Why a file does not count as this user's own; None if it does."""
    secret = _secret()
    if isinstance(secret, str):
        return f"its signature cannot be checked ({secret})"
    try:
        secret_id, _, found = _signature_path(path).read_text().strip().partition(" ")
    except (OSError, UnicodeDecodeError):
        return "it has no signature: another user wrote it, or an earlier version"
    if secret_id != _id_of(secret):
        return "it was written by another user, or with another secret"
    if hmac.compare_digest(found.encode(), _digest(secret, path).encode()):
        return None
    return "it was changed since it was written"


def secret_path() -> Path:
    root = os.environ.get("XDG_CONFIG_HOME")
    return (Path(root) if root else Path.home() / ".config") / "paceline" / "secret"


def _signature_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sig")


def _id_of(secret: bytes) -> str:
    """A public id of the secret. The secret cannot be computed from it."""
    return hmac.new(secret, b"name", hashlib.sha256).hexdigest()[:16]


def _digest(secret: bytes, path: Path) -> str:
    """HMAC of a file's name and content. Because of the name, it is not valid for another kind of file."""
    return hmac.new(secret, f"paceline {path.name}\n".encode() + path.read_bytes(), hashlib.sha256).hexdigest()


def _secret() -> bytes | str:
    """The user's secret, created if missing. If that fails, a text that says why."""
    try:
        path = secret_path()
        if not path.exists():
            _make_secret(path)
        secret, mode = path.read_bytes(), path.stat().st_mode
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder
        return f"the secret that signs your runs cannot be made or read: {error}"
    if len(secret) != SECRET_BYTES:
        return f"{path} does not hold {SECRET_BYTES} bytes; delete it, and a new one is made"
    if stat.S_IMODE(mode) & 0o077:
        return f"{path} is open to other users; delete it, and a new one is made"
    return secret


def _make_secret(path: Path) -> None:
    """Create the secret. If several processes do so at once, all of them end up with the same one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".secret.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb", opener=functools.partial(os.open, mode=0o600)) as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)  # unlike a rename, this never replaces an existing file
    finally:
        temporary.unlink(missing_ok=True)


@functools.cache
def _warn_once(problem: str) -> None:
    log.warning("the files of this run are not signed, and --resume and eval may ask for --trust later: %s", problem)
