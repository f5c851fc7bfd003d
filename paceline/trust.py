"""Signs the user's own files, and refuses to run code from other files without the user's consent.

A run's `config.json` and the `manifest.json` of every checkpoint, which has the digests of all its files, are signed:
`config.json.sig` names the secret and has an HMAC-SHA256 by it. The secret is the user's own, in
~/.config/paceline/secret or under $XDG_CONFIG_HOME. A run folder stays recognised where it is copied or moved as a whole. Two things in it can run code:
what the configuration names (`may_run`: an environment, a class of a network) and saved simulators, which are pickles (`may_unpickle`).
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
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from paceline.envs.registry import code_named_by
from paceline.errors import UsageError
from paceline.files import replace_text

log = logging.getLogger(__name__)

SECRET_BYTES = 32
ENDING = ".sig"


def sign(path: Path, write: Callable[[Path, str], object] = replace_text) -> None:
    """Sign a file that this user has just written. Without a secret it stays unsigned, which is said once."""
    secret, signature = _secret(), _signature_path(path)
    if isinstance(secret, str):
        _warn_once(secret)
        signature.unlink(missing_ok=True)
    else:
        write(signature, f"{_name(secret)} {_digest(secret, path.name, path.read_bytes())}\n")


def why_foreign(path: Path) -> str | None:
    """Why a file does not count as this user's own, in words; None if it does."""
    secret = _secret()
    if isinstance(secret, str):
        return f"it cannot be checked whether this user wrote it ({secret})"
    try:
        name, _, found = _signature_path(path).read_text().strip().partition(" ")
    except (OSError, UnicodeDecodeError):
        return "it has no signature: this user has not written it, or with an earlier version"
    if name != _name(secret):
        return "it was written by another user, or by this one with another secret"
    if hmac.compare_digest(found.encode(), _digest(secret, path.name, path.read_bytes()).encode()):
        return None
    return "it was changed since it was written"


def may_run(
    env: str | None,
    file: Path,
    *,
    trust: bool = False,
    address: str | None = None,
    classes: Mapping[str, str] | None = None,
) -> bool:
    """Refuse the environment `env`, the classes of networks (`package.module:Class` by option), and the Ray cluster at
    `address` that `file` names, if they would run the code of somebody else.

    True if the user has said that the file is to be trusted: with `trust` (--trust), or by an answer on the terminal.
    """
    if trust:
        return True
    dangers = (
        [f"environment {env!r} would {danger}"]
        if env is not None and (danger := code_named_by(env)) is not None
        else []
    )
    own = ", or --env to name the environment yourself" if dangers and not classes and address is None else ""
    for option, name in (classes or {}).items():
        module, _, attribute = name.partition(":")
        dangers.append(f"{option} {name!r} would import the module {module!r} and call {attribute!r}")
    if address is not None:
        dangers.append(f"remote.address would run what the Ray cluster at {address!r} sends")
    why = why_foreign(file) if dangers else None
    if why is None:
        return False
    problem = f"{file} is not recognised as yours ({why}), and its {', and its '.join(dangers)}"
    if _ask(f"{problem}. Run it?"):
        return True
    raise UsageError(f"{problem}; allowed: --trust if you know what it runs{own}")


def may_unpickle(manifest: Path, *, trust: bool = False) -> bool:
    """Whether to restore the saved simulators of the checkpoint with this manifest, which can run any code."""
    if trust:
        return True
    why = why_foreign(manifest)
    if why is None:
        return True
    problem = (
        f"the simulators saved in {manifest.parent} are not recognised as yours ({manifest.name}: {why}), and can run "
        "any code when they are loaded"
    )
    if _ask(f"{problem}. Load them?"):
        return True
    log.warning("%s. They are not loaded, and all episodes start anew; --trust loads them", problem)
    return False


def secret_path() -> Path:
    root = os.environ.get("XDG_CONFIG_HOME")
    return (Path(root) if root else Path.home() / ".config") / "paceline" / "secret"


def _signature_path(path: Path) -> Path:
    return path.with_name(path.name + ENDING)


def _name(secret: bytes) -> str:
    """A public id of the secret. The secret cannot be computed from it."""
    return hmac.new(secret, b"name", hashlib.sha256).hexdigest()[:16]


def _digest(secret: bytes, name: str, content: bytes) -> str:
    """HMAC of a file's name and content. With the name, a signature is not valid for another kind of file."""
    return hmac.new(secret, f"paceline {name}\n".encode() + content, hashlib.sha256).hexdigest()


def _secret() -> bytes | str:
    """The user's secret, which is created if it is missing; or what is wrong, if that fails."""
    try:
        path = secret_path()
        if not path.exists():
            _make_secret(path)
        secret, mode = path.read_bytes(), path.stat().st_mode
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        return f"the secret that recognises your runs cannot be made or read: {error}"
    if len(secret) != SECRET_BYTES:
        return f"{path} does not hold {SECRET_BYTES} bytes; delete it, and another is made"
    if stat.S_IMODE(mode) & 0o077:
        return f"{path} is open to other users; delete it, and another is made"
    return secret


def _make_secret(path: Path) -> None:
    """Of several processes that make one at the same time, all go on with the same."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".secret.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb", opener=functools.partial(os.open, mode=0o600)) as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)  # unlike a rename, it never replaces one that is there
    finally:
        temporary.unlink(missing_ok=True)


@functools.cache
def _warn_once(problem: str) -> None:
    log.warning("the files of this run are not signed, and --resume and eval may ask for --trust later: %s", problem)


def _ask(question: str) -> bool:
    """Ask on the terminal. False without a terminal, and with several ranks."""
    several = any(os.environ.get(name, "1") != "1" for name in ("WORLD_SIZE", "SLURM_NTASKS"))
    if several or not (sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty()):
        return False
    sys.stderr.write(f"paceline: {question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
