"""A client's cell without a client behind it: ``python -m tests.deploy.peer NUMBER URL KIT [forge N | large BYTES]``.

It answers every request with its number after half a second. ``forge`` answers in the name of client N as well, as
far as FLARE lets it; ``large`` answers with so many bytes.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from privfl.deploy import flare


def main(number: str, url: str, kit: str, *how: str) -> None:
    """Answer until the process is killed."""
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType, ReturnCode

    name = flare.name_of(int(number))
    cell, module = flare._cell(name, url, Path(kit), "client")
    if how[:1] == ("large",):
        cell.max_msg_size = 1 << 40

    def forge(request: Any, victim: str) -> None:
        headers = {
            MessageHeaderKey.CHANNEL: flare.CHANNEL,
            MessageHeaderKey.TOPIC: flare.TOPIC,
            MessageHeaderKey.FROM_CELL: name,
            MessageHeaderKey.TO_CELL: flare.SERVER,
            MessageHeaderKey.ORIGIN: victim,
            MessageHeaderKey.DESTINATION: flare.SERVER,
            MessageHeaderKey.REQ_ID: [request.get_header(MessageHeaderKey.REQ_ID)],
            MessageHeaderKey.MSG_TYPE: MessageType.REPLY,
            MessageHeaderKey.ROUTE: [(victim, time.time())],
            MessageHeaderKey.RETURN_CODE: ReturnCode.OK,
        }
        message = module.Message(headers, b"forged")
        error, endpoint = cell._find_endpoint(flare.SERVER, message)
        assert not error, error
        assert not cell._send_to_endpoint(endpoint, message)

    def answered(request: Any) -> Any:
        time.sleep(0.5)
        if how[:1] == ("forge",):
            time.sleep(0.5)  # the victim has answered by now, and the last reply in a name is the one that would count
            forge(request, flare.name_of(int(how[1])))
        size = int(how[1]) if how[:1] == ("large",) else 0
        return module.Message(payload=number.encode() + bytes(size))

    cell.register_request_cb(flare.CHANNEL, flare.TOPIC, answered)
    cell.start()
    print("ready", flush=True)
    while True:
        time.sleep(1.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
