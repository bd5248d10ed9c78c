"""What can go wrong between an engine and kvconnd: the types that callers tell apart."""

from __future__ import annotations


class KVConnError(Exception):
    """Base of all errors of this package."""


class Unavailable(KVConnError):
    """There is no usable connection: go on as if nothing were cached."""


class SocketMissing(Unavailable):
    """Nothing is at the socket's path: the daemon was not started, or started with another path."""


class SocketRefused(Unavailable):
    """The socket's file is there, but nobody listens: the daemon has died or is overloaded."""


class SocketPermission(Unavailable):
    """The socket belongs to another user."""


class ConnectionLost(Unavailable):
    """The daemon closed the connection, or died."""


class DeadlineExceeded(Unavailable):
    """The daemon did not answer in time."""


class ProtocolError(Unavailable):
    """What answers at the socket does not speak the protocol, or speaks it wrongly."""


class VersionMismatch(Unavailable):
    """The daemon speaks none of our protocol versions."""


class RequestTooLarge(KVConnError):
    """A request is beyond the protocol's bounds; nothing was sent."""


class Rejected(KVConnError):
    """The daemon answered with an error; the connection stays usable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code


class UnknownRequest(Rejected):
    """The leader does not know the beginning of the request: match again with `start` 0."""


class TryAgain(Rejected):
    """What the call needs is not there now, and soon may be."""


class NotRegistered(Rejected):
    """The worker has no registered KV memory."""
