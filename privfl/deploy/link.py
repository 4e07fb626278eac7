"""What the server says to its clients and hears from them: signed both ways, checked, and never waited for in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from privfl.algorithms.base import Tensors
from privfl.deploy.agreement import Federation, Policy
from privfl.deploy.messages import BadMessage, Message, Parts, digest, opened
from privfl.deploy.transport import Transport
from privfl.errors import brief
from privfl.privacy.secagg.primitives import SigningKey
from privfl.simulation.health import LOG, SILENT

UNSIGNED = "answered without its own signature"
ANOTHER = "answered another request than it was asked"
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
        ahead: who of these says that it has answered later rounds of this run than where the server stands.
        legs: how often the server has waited for answers; policies and the end of a run apart.
        unused: replies in a client's name that were not its answer, by client.
    """

    transport: Transport
    federation: Federation
    policy: Policy
    key: SigningKey
    agreed: set[int] = field(default_factory=set)
    ahead: set[int] = field(default_factory=set)
    legs: int = 0
    unused: Counter[int] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Message | str]:
        """The answer of each client that is asked, or why there is none, in the order of ``requests``."""
        found = self._introduce(requests, max((int(one.meta.get("round", 0)) for one in requests.values()), default=0))
        run, self.legs = self.policy.digest, self.legs + 1
        asked = {client: request for client, request in requests.items() if client not in found}
        answers = self._exchange(
            {client: Request({**one.meta, "run": run}, one.tensors) for client, one in asked.items()}
        )
        return {client: found.get(client) or answers[client] for client in requests}

    def join(self, clients: range | list[int], round: int = 0) -> dict[int, str]:
        """Let ``clients`` agree to the policy before ``round``; why the others did not."""
        return self._introduce(dict.fromkeys(clients), round)

    def end(self) -> None:
        """Say that the run is over to those who took part."""
        over = Request({"kind": "end", "run": self.policy.digest})
        self._exchange(dict.fromkeys(sorted(self.agreed), over), seconds=min(5.0, self.federation.seconds))
        for client, count in sorted(self.unused.items()):
            if count > 1:
                LOG.warning(
                    "%d replies in the name of client %d were not its own answers; none was used", count, client
                )

    def _introduce(self, clients: Mapping[int, object], round: int) -> dict[int, str]:
        """Send the policy to those of ``clients`` who have not agreed to it; why some of them did not."""
        new = [client for client in clients if client not in self.agreed]
        if not new:
            return {}
        told = Request({"kind": "policy", "policy": self.policy.to_dict(), "round": round})
        problems: dict[int, str] = {}
        for client, answer in self._exchange(dict.fromkeys(new, told)).items():
            if isinstance(answer, str):
                problems[client] = answer
            elif answer.meta.get("policy") != self.policy.digest:
                problems[client] = "agreed to another policy"
            else:
                self.agreed.add(client)
                if answer.meta.get("ahead") is True:
                    self.ahead.add(client)
        return problems

    def _exchange(self, requests: Mapping[int, Request], seconds: float | None = None) -> dict[int, Message | str]:
        parts = Parts()
        sealed = {
            client: Message({**one.meta, "to": client}, one.tensors).sealed(self.key, parts)
            for client, one in requests.items()
        }
        wait = self.federation.seconds if seconds is None else seconds
        answers: dict[int, Message] = {}
        others: dict[int, str] = {}

        def genuine(client: int, reply: bytes) -> bool:
            """Whether this is the client's answer: what anybody could have sent in its name must not be its last."""
            found = self._read(client, sealed[client], reply)
            if isinstance(found, Message):
                answers[client] = found
                return True
            others[client] = found
            self._not_its_own(client, found)
            return False

        came = self.transport.ask(sealed, wait, genuine) if sealed else {}
        silent = f"{SILENT} within {wait:g} s"
        return {
            client: _refused(answers[client]) or answers[client] if client in came else others.get(client, silent)
            for client in sealed
        }

    def _read(self, client: int, request: bytes, reply: bytes) -> Message | str:
        """What a client answered, if it signed that and it answers this very request, or why it is not that."""
        try:
            message = opened(reply, self.federation.keys[client])
        except BadMessage:
            return UNSIGNED
        if message.meta.get("from") != client or message.meta.get("request") != digest(request):
            return ANOTHER
        return message

    def _not_its_own(self, client: int, why: str) -> None:
        """Count a reply that is not used, and log the first one. No file says so: who was drawn may be secret."""
        with self._lock:
            self.unused[client] += 1
            first = self.unused[client] == 1
        if first:
            LOG.warning("client %d, or somebody in its name, %s; its own answer is waited for", client, why)


def _refused(message: Message) -> str:
    """The reason of a client that refuses; empty if it does not."""
    if message.kind not in ("refused", "dropped"):
        return ""
    reason = message.meta.get("reason")  # a client may send anything, also what no text can be made of
    return brief(reason, LONGEST_REASON) if isinstance(reason, str) and reason else "refused, and did not say why"
