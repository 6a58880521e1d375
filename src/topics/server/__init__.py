"""The HTTP server: `/v0` over HTTP/1.1 and HTTP/2 (spec 02, 09)."""
