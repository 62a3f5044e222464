"""Encryption of payloads at rest (§14.5): the keys, and where they come from. Needs ``pip install 'holdfast[crypto]'``.

``Runtime(url, encryption=Encryption(KeyFile("keys.txt")))``, or for every command by ``$HOLDFAST_KEYS``. New payloads are
encrypted with the newest key; an older key remains usable for reading what was encrypted with it. ``docs/encryption.md`` says what is
encrypted and what is not.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from holdfast.core.errors import UsageError

KEY_BYTES = 32
KEYS, STRICT = "HOLDFAST_KEYS", "HOLDFAST_KEYS_STRICT"
_SAYS = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("", "0", "false", "no", "off"), False)}
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@runtime_checkable
class KeyProvider(Protocol):
    """Returns keys of 32 bytes by their ids. It is called often, so it should cache them."""

    def newest(self) -> str:
        """Returns the id of the key with which new payloads are encrypted."""

    def key(self, key_id: str) -> bytes | None:
        """Returns the key with this id; None if it is not available."""


class Keys:
    """Keys by their ids; the last one is the newest unless ``newest`` names another.

    Raises:
        UsageError: there is no key, a key does not have 32 bytes, or an id is not valid.
    """

    def __init__(self, keys: Mapping[str, bytes], *, newest: str | None = None) -> None:
        if not keys:
            raise UsageError("encryption needs a key", hint="holdfast.encryption.new_key() makes one")
        for key_id, key in keys.items():
            if not isinstance(key_id, str) or _ID.fullmatch(key_id) is None:
                raise UsageError(f"{key_id!r} is not a valid key id", hint="letters, digits, dot, dash and underscore, at most 64")
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                raise UsageError(f"the key {key_id!r} is not 32 bytes", hint="holdfast.encryption.new_key() makes one")
        self._keys = dict(keys)
        self._newest = list(self._keys)[-1] if newest is None else newest
        if self._newest not in self._keys:
            raise UsageError(f"the newest key {self._newest!r} is not among those given", hint=f"given: {', '.join(self._keys)}")

    def newest(self) -> str:
        return self._newest

    def key(self, key_id: str) -> bytes | None:
        return self._keys.get(key_id)

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._keys)}; newest {self._newest})"


class KeyFile:
    """Keys in a file, one per line: the id, a space, and the key in base64; the last line is the newest key. A line that begins with ``#`` is
    a comment. The file is read again when it has changed, so that a key can be added without a restart.

    Raises:
        UsageError: the file cannot be read, or contains no keys.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._given = os.fspath(path)
        self._path = os.path.abspath(self._given)  # absolute, because a node may change the working directory before the file is read again
        self._stamp: tuple[int, int, int] | None = None
        self._keys = self._read()

    def newest(self) -> str:
        return self._fresh().newest()

    def key(self, key_id: str) -> bytes | None:
        return self._keys.key(key_id) or self._fresh().key(key_id)

    def _fresh(self) -> Keys:
        try:
            if self._now() != self._stamp:
                self._keys = self._read()
        except OSError:
            pass  # the keys read before are used while the file is being replaced
        return self._keys

    def _now(self) -> tuple[int, int, int]:
        found = os.stat(self._path)
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> Keys:
        try:
            stamp = self._now()
            with open(self._path, encoding="utf-8") as f:
                lines = f.read().splitlines()
        except (OSError, UnicodeError) as e:
            raise UsageError(f"the file of keys {self._path} cannot be read: {e}", hint="one line a key: its id, a space, 32 bytes in base64") from e
        keys: dict[str, bytes] = {}
        for number, text in enumerate(lines, 1):
            if not text.strip() or text.startswith("#"):
                continue
            key_id, _, data = text.strip().partition(" ")
            try:
                keys[key_id] = base64.b64decode(data.strip(), validate=True)
            except (binascii.Error, ValueError):
                raise UsageError(f"line {number} of {self._path} holds no key", hint="its id, a space, 32 bytes in base64") from None
        self._stamp = stamp
        return Keys(keys)

    def __repr__(self) -> str:
        return f"KeyFile({self._given!r})"


@dataclass(frozen=True)
class Encryption:
    """How payloads are stored. ``strict``: data that is not encrypted is refused when it is read; otherwise such data from before is read as it is."""

    keys: KeyProvider
    strict: bool = False


def new_key() -> bytes:
    """Makes a new random key."""
    return secrets.token_bytes(KEY_BYTES)


def as_line(key_id: str, key: bytes) -> str:
    """Formats a key as a line for a file of keys."""
    return f"{key_id} {base64.b64encode(key).decode()}\n"


def _of_environment(path: str, word: str) -> Encryption | None:
    """Returns the encryption that the environment variables ask for. A mistake in them must not lead to payloads that are stored unencrypted.

    Raises:
        UsageError: strict encryption is asked for and no file of keys is named, or the word means neither yes nor no.
    """
    strict = _SAYS.get(word.strip().lower())
    if strict is None:
        raise UsageError(f"${STRICT} is {word!r}, which is neither on nor off", hint=f"{STRICT}=1 or {STRICT}=0")
    if path:
        return Encryption(KeyFile(path), strict=strict)
    if strict:
        raise UsageError(f"${STRICT} refuses what is not encrypted, and ${KEYS} names no file of keys", hint=f"set {KEYS} to the file, or unset {STRICT}")
    return None


def coerce(given: object) -> Encryption | None:
    """Checks the argument of ``Runtime(encryption=…)``; None means the file that ``$HOLDFAST_KEYS`` names, or no encryption.

    Raises:
        UsageError: it is not valid, or the variables contradict each other.
    """
    if given is None:
        return _of_environment(os.environ.get(KEYS, "").strip(), os.environ.get(STRICT, ""))
    if isinstance(given, Encryption):
        given_keys: object = given.keys
        if not isinstance(given_keys, KeyProvider):
            raise UsageError("Encryption(keys) needs a provider of keys", hint="Keys({…}), KeyFile(path), or an object with newest() and key(id)")
        return given
    if isinstance(given, KeyProvider):
        return Encryption(given)
    if isinstance(given, Mapping):
        return Encryption(Keys(given))
    raise UsageError(f"encryption is {type(given).__name__}", hint="Encryption(KeyFile(path)), or a provider of keys")


__all__ = ["KEYS", "KEY_BYTES", "STRICT", "Encryption", "KeyFile", "KeyProvider", "Keys", "as_line", "coerce", "new_key"]
