"""Start the studio: find a port, listen on the loopback interface, open a browser."""

from __future__ import annotations

import logging
import socket
import threading
import webbrowser
from collections.abc import Callable

from tiebeam.errors import BadRequest, MissingExtra
from tiebeam.studio.model_list import ModelList

PORT = 4270


def listen(port: int | None) -> socket.socket:
    """Listen on 127.0.0.1 at `port`, or without one at the default port or the next free one."""
    candidates = [port] if port is not None else [*range(PORT, PORT + 20), 0]
    for number in candidates:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", number))
        except OSError as error:
            listener.close()
            if port is not None:
                raise BadRequest(f"port {port} cannot be used ({error.strerror}); use another port") from None
            continue
        listener.listen(128)
        return listener
    raise AssertionError("port 0 is always free")


def serve(
    models: ModelList,
    port: int | None,
    announce: Callable[[str], None],
    open_page: str | None,
    *,
    memory: int | None = None,
    request_seconds: float = 10.0,
) -> None:
    """Serve until interrupted. `announce` gets the address; `open_page` is opened in a browser.

    `memory` limits the weights that are held, in bytes; a request must arrive within `request_seconds`.
    """
    try:
        import uvicorn

        from tiebeam.studio.app import build
        from tiebeam.studio.request_timeout import timed_protocol
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise MissingExtra("the studio", "studio") from None
    listener = listen(port)
    number = listener.getsockname()[1]
    address = f"http://127.0.0.1:{number}/"
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        build(models, number, memory),
        http=timed_protocol(request_seconds),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,  # open event streams would delay shutdown forever
    )
    announce(address)
    if open_page is not None:
        threading.Thread(target=webbrowser.open, args=(address + open_page,), daemon=True).start()
    uvicorn.Server(config).run(sockets=[listener])
