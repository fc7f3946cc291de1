"""The three files with which one place proves who it is: its certificate, its key, and the authority that it believes."""

import os
import ssl
import stat
from pathlib import Path

from rankpatrol.core.errors import BadInput, NoPermission
from rankpatrol.core.records import Record

CA, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
_MAKE = "`rankpatrol hub init-keys` makes them: copy the folder of this node as it is, readable by its user alone."


class KeyFiles(Record, frozen=True, kw_only=True):
    """Where the files of one place are."""

    ca: Path
    certificate: Path
    key: Path


def key_files_in(folder: Path) -> KeyFiles:
    """The files of a folder that keys.py made."""
    return KeyFiles(ca=folder / CA, certificate=folder / CERTIFICATE, key=folder / KEY)


def tls_context(files: KeyFiles) -> ssl.SSLContext:
    """Believes this authority alone, and shows this certificate. Raises BadInput, or NoPermission where others can read the key."""
    _check_key(files.key)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cafile=files.ca)
        # An encrypted key would ask for its password on the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except ssl.SSLError as problem:
        raise BadInput(f"{files.certificate}, {files.key} and {files.ca} do not go together: {problem}", help=_MAKE) from problem
    except OSError as problem:
        raise BadInput(f"a certificate cannot be read: {problem.strerror} (of {files.certificate}, {files.ca})", help=_MAKE) from problem
    return context


def _check_key(key: Path) -> None:
    try:
        facts = key.stat()
    except PermissionError as problem:
        raise NoPermission(f"{key} may not be read", help=_MAKE) from problem
    except OSError as problem:
        raise BadInput(f"{key} cannot be read: {problem.strerror}", help=_MAKE) from problem
    if not stat.S_ISREG(facts.st_mode):
        raise BadInput(f"{key} is no regular file", help=_MAKE)
    if facts.st_uid not in {0, os.geteuid()}:
        raise NoPermission(f"{key} belongs to user {facts.st_uid}, and we are {os.geteuid()}", help=_MAKE)
    if facts.st_mode & 0o077:
        raise NoPermission(f"{key} can be read or written by others (mode {facts.st_mode & 0o777:o})", help=f"chmod 600 {key}")
