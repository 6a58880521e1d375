"""Clients of a server: `Client` blocks, `AsyncClient` is the same with `await` [U-20].

protocol    every call as requests and answers, without I/O; with body (what goes out), answers (what comes back),
            failure (errors that were told) and retry (what may be asked again, and when)
http1       HTTP/1.1 as bytes, without I/O
events      server-sent events as bytes, and a watch that resumes, without I/O
sync        blocking sockets, and the connections that are kept
aio         the same on an event loop
"""
