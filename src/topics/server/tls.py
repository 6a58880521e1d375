"""TLS: one certificate, offered with `h2` and `http/1.1`, and exchanged while connections go on [A-6, API-2, KEY-4].

The listener keeps one context for its life. Each handshake is handed over to the newest complete context, so that a
pair that does not load, or does not fit together, changes nothing. `load` may be called on any thread.
"""

from __future__ import annotations

import ssl
from typing import Final

from topics.errors import SettingsError

ALPN: Final = ("h2", "http/1.1")


class Certificate:
    """The pair in force."""

    def __init__(self, cert: str, key: str) -> None:
        """Raises `SettingsError` when the pair cannot be used."""
        self._cert, self._key = cert, key
        self._newest = load(cert, key)
        self.context = load(cert, key)
        """For the listener."""
        self.context.sni_callback = self._hand_over

    def _hand_over(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest

    def read_again(self) -> ssl.SSLContext:
        """The pair as the files hold it now."""
        return load(self._cert, self._key)

    def use(self, context: ssl.SSLContext) -> None:
        """For handshakes from now on."""
        self._newest = context


def load(cert: str, key: str) -> ssl.SSLContext:
    """A context with this pair."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(list(ALPN))
    try:
        # With a password at hand nobody is asked for one at a terminal: an encrypted key is an error.
        context.load_cert_chain(cert, key, password=lambda: "")
    except ssl.SSLError as error:
        why = error.reason or "no PEM certificate and unencrypted key"
        raise SettingsError("TOPICS_TLS_CERT", f"{cert} and {key} are no usable pair: {why}") from None
    except OSError as error:
        raise SettingsError("TOPICS_TLS_CERT", f"{cert} or {key} cannot be read: {error.strerror or error}") from None
    return context
