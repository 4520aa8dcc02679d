"""Start the studio: find a port, listen on the loopback interface, open the browser."""

from __future__ import annotations

import logging
import socket
import threading
import webbrowser
from collections.abc import Callable

from tiebeam.errors import BadRequest, MissingExtra
from tiebeam.studio.model_list import Shelf

PORT = 4270


def listen(port: int | None) -> socket.socket:
    """A socket on 127.0.0.1 at `port`, or, when none is asked for, at the usual one or the next that is free."""
    wanted = [port] if port is not None else [*range(PORT, PORT + 20), 0]
    for number in wanted:
        ear = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            ear.bind(("127.0.0.1", number))
        except OSError as error:
            ear.close()
            if port is not None:
                raise BadRequest(f"port {port} cannot be used ({error.strerror}); name another with --port") from None
            continue
        ear.listen(128)
        return ear
    raise AssertionError("port 0 is always free")


def serve(shelf: Shelf, port: int | None, say: Callable[[str], None], open_page: str | None) -> None:
    """Serve until interrupted. `say` gets the address once we listen; `open_page` is shown in a browser."""
    try:
        import uvicorn

        from tiebeam.studio.app import build
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise MissingExtra("the studio", "studio") from None
    ear = listen(port)
    number = ear.getsockname()[1]
    address = f"http://127.0.0.1:{number}/"
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        build(shelf, number),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,  # a live stream would hold the door open for ever
    )
    say(address)
    if open_page is not None:
        threading.Thread(target=webbrowser.open, args=(address + open_page,), daemon=True).start()
    uvicorn.Server(config).run(sockets=[ear])
