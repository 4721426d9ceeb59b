"""Header values with letters beyond ASCII.

HTTP does not define their encoding ([RFC 9110, 5.5](https://www.rfc-editor.org/rfc/rfc9110#section-5.5)). Pulsar's
server and its Java clients, Python's `http.client` and browsers use ISO 8859-1, and aiohttp uses UTF-8. A client would
decode the UTF-8 of `ü` as two other letters. So `latin_1` prepares a value for ISO 8859-1. Pulsar drops letters that
are not in ISO 8859-1. Quire sends a value with such letters in UTF-8; a client that decoded it as ISO 8859-1 can
convert it back.

aiohttp's parser maps bytes that are not UTF-8 to lone surrogates (`surrogateescape`), and its writer drops these.
A `RawHeaders` response writes the original bytes, so that a gateway can forward them.
"""

from __future__ import annotations

from aiohttp import web


def latin_1(text: str) -> str:
    """Convert a header's value so that `RawHeaders` writes it in ISO 8859-1; in UTF-8, if ISO 8859-1 lacks a letter."""
    try:
        return text.encode("latin-1").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text


class RawHeaders(web.StreamResponse):
    """Response whose headers may contain any bytes, as surrogates."""

    async def _write_headers(self) -> None:
        headers, immediately = self.headers, self._send_headers_immediately
        if all(value.isascii() for value in headers.values()):
            await super()._write_headers()
            return
        self._send_headers_immediately = False
        try:
            await super()._write_headers()  # refuses control characters
        finally:
            self._send_headers_immediately = immediately
        request, writer = self._req, self._payload_writer
        assert request is not None and writer is not None
        major, minor = request.version
        lines = [f"HTTP/{major}.{minor} {self.status} {self.reason}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer._headers_buf = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")  # type: ignore[attr-defined]
        if immediately:
            writer.send_headers()


class RawHeadersResponse(RawHeaders, web.Response):
    """Response with a body and `RawHeaders`."""
