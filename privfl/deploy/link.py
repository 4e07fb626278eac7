"""What the server says to its clients and hears from them: signed both ways, checked, and never waited for in vain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from privfl.algorithms.base import Tensors
from privfl.deploy.agreement import Federation, Policy
from privfl.deploy.messages import BadMessage, Message, Parts, digest, opened
from privfl.deploy.transport import Transport
from privfl.errors import brief
from privfl.privacy.secagg.primitives import SigningKey

UNSIGNED = "answered without its own signature"
LONGEST_REASON = 100


@dataclass(frozen=True)
class Request:
    """What one client is asked."""

    meta: Mapping[str, Any]
    tensors: Tensors = field(default_factory=dict)


@dataclass
class Link:
    """The server's side of all conversations of one run.

    Args:
        transport: carries the bytes.
        federation: whose keys count.
        policy: of the run.
        key: the server's.
        agreed: who has agreed to the policy.
        legs: how often the server has waited for answers; policies and the end of a run apart.
    """

    transport: Transport
    federation: Federation
    policy: Policy
    key: SigningKey
    agreed: set[int] = field(default_factory=set)
    legs: int = 0

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Message | str]:
        """The answer of each client that is asked, or why there is none, in the order of ``requests``."""
        found = self._introduce(requests)
        run, self.legs = self.policy.digest, self.legs + 1
        asked = {client: request for client, request in requests.items() if client not in found}
        answers = self._exchange(
            {client: Request({**one.meta, "run": run}, one.tensors) for client, one in asked.items()}
        )
        return {client: found.get(client) or answers[client] for client in requests}

    def join(self, clients: range | list[int]) -> dict[int, str]:
        """Let ``clients`` agree to the policy; why the others did not."""
        return self._introduce(dict.fromkeys(clients))

    def end(self) -> None:
        """Say that the run is over to those who took part."""
        over = Request({"kind": "end", "run": self.policy.digest})
        self._exchange(dict.fromkeys(sorted(self.agreed), over), seconds=min(5.0, self.federation.seconds))

    def _introduce(self, clients: Mapping[int, object]) -> dict[int, str]:
        """Send the policy to those of ``clients`` who have not agreed to it; why some of them did not."""
        new = [client for client in clients if client not in self.agreed]
        if not new:
            return {}
        told = Request({"kind": "policy", "policy": self.policy.to_dict()})
        problems: dict[int, str] = {}
        for client, answer in self._exchange(dict.fromkeys(new, told)).items():
            if isinstance(answer, str):
                problems[client] = answer
            elif answer.meta.get("policy") != self.policy.digest:
                problems[client] = "agreed to another policy"
            else:
                self.agreed.add(client)
        return problems

    def _exchange(self, requests: Mapping[int, Request], seconds: float | None = None) -> dict[int, Message | str]:
        parts = Parts()
        sealed = {
            client: Message({**one.meta, "to": client}, one.tensors).sealed(self.key, parts)
            for client, one in requests.items()
        }
        wait = self.federation.seconds if seconds is None else seconds
        came = self.transport.ask(sealed, wait) if sealed else {}
        return {client: self._read(client, request, came.get(client), wait) for client, request in sealed.items()}

    def _read(self, client: int, request: bytes, reply: bytes | None, seconds: float) -> Message | str:
        """What a client answered, if it signed that and it answers this very request."""
        if reply is None:
            return f"did not answer within {seconds:g} s"
        try:
            message = opened(reply, self.federation.keys[client])
        except BadMessage:
            return UNSIGNED
        if message.meta.get("from") != client or message.meta.get("request") != digest(request):
            return "answered another request than it was asked"
        if message.kind in ("refused", "dropped"):
            return brief(str(message.meta.get("reason")), LONGEST_REASON)
        return message
