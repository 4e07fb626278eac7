"""The engine of a federation: every client trains where its data are, and the server hears what leaves the channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.deploy.convictions import Convictions
from privfl.deploy.diary import ANSWERED_BEFORE, NO_LONGER_KEPT
from privfl.deploy.link import Link, Request
from privfl.deploy.local import LEFT_BEHIND
from privfl.deploy.messages import Message, as_bytes, as_tensor
from privfl.deploy.secure import MASKED, Early, NetworkAggregator, drawn, session_of
from privfl.engine.workspace import ClientResult, Phase, RoundContext, phases_of
from privfl.errors import ConfigError
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.channel.client_side import within_bound
from privfl.privacy.mechanisms.clip import norm
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.secagg.messages import Phase as Leg
from privfl.privacy.secagg.session import IDENTITY_BYTES, Session
from privfl.privacy.sizes.known_sizes import Sizes
from privfl.simulation.health import LOG
from privfl.simulation.plan import Plan
from privfl.simulation.remote_engine import RemoteEngine
from privfl.simulation.round_costs import planned_log

KEPT_SINCE = "kept since round"
"""All that the server has of what a client keeps: the round from which it is, the last one that counted."""
OLDER = (
    "Clients have answered rounds of this run that its folder does not know, or to other requests, so the folder seems "
    "to be older than the run: restore the newer one, or start anew with another --out."
)


class FederationEngine(RemoteEngine):
    """Asks the clients of a federation over a :class:`~privfl.deploy.link.Link`."""

    def __init__(self, plan: Plan, link: Link, secret: bytes, sizes: Sizes, convictions: Convictions) -> None:
        """``secret``: of the server and this run, from which sessions of secure sums follow."""
        super().__init__(
            plan.task,
            plan.algorithm,
            plan.training,
            plan.channel.usual,
            way=plan.way,
            workers=1,
            precision=plan.execution.precision,
            deterministic=plan.execution.deterministic,
        )
        self._link, self._secret, self._plan, self._sizes = link, secret, plan, sizes
        self._sum: NetworkAggregator | None = None
        self._early: Early | None = None
        self.left: list[str] = []
        self._beyond: set[int] = set()
        self._convictions = convictions
        self.notes += convictions.notes
        self.repeats = False
        self._central = any(one.channel.has_central_noise for one in phases_of(plan.algorithm, plan.channel.usual))

    def train(
        self, cohort: Iterable[int], received: Tensors, context: RoundContext, phase: Phase | None = None
    ) -> Iterator[ClientResult]:
        """What ``cohort`` sends, in its order; whoever sends nothing that can be used is dropped, with the reason.

        The server cannot look into a client's door. So the log of each is the one that was planned: a client holds its
        own to it before it sends, and what it signs says so. That its code left something behind is for its data to
        say, which no noise hides once it refuses: then there is no guarantee.
        """
        self.see_repeated({}, context.number)
        does = phase or self.phase
        channel, secure = does.channel, None
        if channel.secure is not None:
            secure, self._sum = self._sum, None
            assert secure is not None
            if secure.gave_up:
                return
        requests: dict[int, Request] = {}
        members = list(cohort)
        for client in members:
            if secure is None or client in secure.letters:
                meta = {
                    **self._round(does, "train"),
                    "kept": _since(context.client_state.get(client, {})),
                    "factor": 1.0 if secure is None else secure.weights[client],
                }
                tensors = {f"received/{name}": value for name, value in received.items()}
                if secure is not None:
                    tensors["letters"] = as_tensor(secure.letters[client])
                    meta["session"] = secure.session.identity.hex()
                requests[client] = Request(meta, tensors)
        answers = self._link.ask(requests)
        self.see_repeated(answers, context.number)
        training, convicted = self.training.in_round(context.number), self._convictions.before(context.number)
        for client in members:
            log = planned_log(does.algorithm, training, channel, client, received)
            answer = answers.get(client, convicted.get(client, "was left out of the secure sum"))
            if isinstance(answer, str):
                if answer == LEFT_BEHIND:
                    self.left.append(f"what the code at client {client} reaches")
                yield ClientResult(client, None, {}, log, answer)
                continue
            like = received["parameters"]
            wrong = _masked_problem(answer) if secure is not None else upload_problem(channel, answer.tensors, like)
            if wrong:
                yield ClientResult(client, None, {}, log, wrong)
                continue
            upload = dict(answer.tensors)
            if secure is None:
                upload, beyond = held_to_bounds(channel, upload)
                self._tell(client, beyond, context.number)
            kept = {KEPT_SINCE: torch.tensor(context.number)} if does.algorithm.keeps else {}
            yield ClientResult(client, upload, kept, log)

    def secure_aggregator(
        self, phase: Phase, members: list[int], weights: Sequence[float], like: Tensor, source: NoiseSource
    ) -> NetworkAggregator:
        """A secure sum over the network, whose keys and shares are exchanged at once.

        Raises:
            ConfigError: no secure sum over these members is safe.
        """

        def exchange(session: Session, leg: Leg, given: Mapping[int, bytes]) -> Mapping[int, bytes]:
            return self._leg(phase, session, leg, given, absent)

        number = phase.channel.round.number
        convicted = self._convictions.before(number)
        absent: dict[int, str] = dict(convicted)
        keys, early, self._early = self._link.federation.keys, self._early, None
        self._sum = NetworkAggregator(
            phase,
            members,
            weights,
            like,
            source,
            secret=self._secret,
            keys=keys,
            exchange=exchange,
            tell=lambda blamed: self._blame(blamed, number),
            absent=absent,
            without=convicted,
            early=early,
        )
        return self._sum

    def _leg(
        self, phase: Phase, session: Session, leg: Leg, given: Mapping[int, bytes], absent: dict[int, str]
    ) -> Mapping[int, bytes]:
        """One leg of a secure sum; with its last one keys for the next sum are asked for, which saves a leg.

        Why there is no answer of somebody's is added to ``absent``.
        """
        meta = {**self._round(phase, "secure"), "leg": int(leg), "session": session.identity.hex()}
        asked = {client: Request(meta, {"message": as_tensor(data)}) for client, data in given.items()}
        ahead = self._ahead(phase) if leg is Leg.UNMASK else None
        if ahead is not None:
            following, coming = ahead
            told = {**self._round(following, "secure"), "session": coming.identity.hex()}
            for client in sorted(set(coming.members) - self._convictions.before(following.channel.round.number).keys()):
                one = asked.get(client, Request({**meta, "leg": None}))
                tensors = {**one.tensors, "next": as_tensor(coming.to_bytes())}
                asked[client] = Request({**one.meta, "next": told}, tensors)
        answers = self._link.ask(asked)
        absent |= {client: why for client, why in answers.items() if isinstance(why, str) and client in given}
        if ahead is not None:
            self._early = Early(ahead[1], _parts(answers, "next"))
        return {client: part for client, part in _parts(answers, "message").items() if client in given}

    def _ahead(self, phase: Phase) -> tuple[Phase, Session] | None:
        """The secure sum after that of ``phase``, if it is known by now; ``None`` if it is not, or there is none."""
        plan, number = self._plan, phase.channel.round.number + 1
        unknown = plan.channel.chain.server_state or plan.asks_every_round or plan.algorithm.survey() is not None
        if unknown or number >= plan.schedule.rounds:
            return None
        state = plan.algorithm.start(plan.initial)  # who is asked does not depend on it
        selection, _ = plan.select_cohort(number, plan.available(number), state, self._sizes)
        (following,) = phases_of(plan.algorithm, plan.channel.in_round(number, len(selection.clients), {}))
        if following.channel.refusal:
            return None
        try:
            identity = drawn(self._secret, following)[:IDENTITY_BYTES]
            return following, session_of(following, selection.clients.tolist(), identity)
        except ConfigError:
            return None  # the round itself says why

    def _round(self, phase: Phase, kind: str) -> dict[str, object]:
        """What a client needs in order to make the same channel of this phase."""
        dpsgd, asked = self._plan.privacy.training, self._link.policy.experiment.get("privacy", {}).get("training", {})
        calibrated = dpsgd is not None and "target_epsilon" in asked
        return {
            "kind": kind,
            "round": phase.channel.round.number,
            "label": phase.label,
            # nobody but a secure sum needs the cohort's size, and it tells of a draw that may have to stay secret
            **({"asked": phase.channel.asked} if phase.channel.secure is not None else {}),
            "bound": phase.channel.round.bound,
            **({"noise_multiplier": dpsgd.noise_multiplier} if calibrated and dpsgd is not None else {}),
        }

    def see_repeated(self, answers: Mapping[int, Message | str], round: int) -> None:
        """See whether a client answered this ``round``, or a later one, before, and to another request than now.

        Clients sign that. A server whose folder is intact repeats what it asked, but where somebody dropped out in one
        attempt and not in the other; one whose folder was put back asks something else, and the noise that it adds to
        sums is the same. It cannot tell the one from the other, so such noise hides nothing from then on, whoever says
        so: a client that lies ends the claims, as one does that left something behind, and not the run. What clients
        draw themselves goes into one answer only, and is not used twice.
        """
        ahead = sorted(self._link.ahead)
        ahead += [client for client, answer in answers.items() if answer in (ANSWERED_BEFORE, NO_LONGER_KEPT)]
        if ahead and OLDER not in self.notes:
            LOG.warning("round %d: client %d has answered it before, or a later one. %s", round, ahead[0], OLDER)
            self.notes.append(OLDER)
            self.repeats = self._central

    def _tell(self, client: int, beyond: str, round: int) -> None:
        """Log, once of each client, that it sent what no honest one does. No file says so: who was drawn may be secret,
        and whose upload could not be used always is where noise covers clients."""
        if beyond and client not in self._beyond:
            self._beyond.add(client)
            LOG.warning("round %d: client %d %s; it counts as scaled down to that", round, client, beyond)

    def _blame(self, blamed: Mapping[int, str], round: int) -> None:
        self.notes += self._convictions.add(blamed, round)


def upload_problem(channel: RoundChannel, upload: Mapping[str, Tensor], like: Tensor) -> str:
    """Why what came from a client is no upload, in a few words; empty if it is. A client may send anything."""
    names = {field.name for field in channel.sent}
    if set(upload) != names:
        missing = sorted(names - set(upload))
        return f"sent no '{missing[0]}'" if missing else "sent more than it was asked for"
    for field in channel.sent:
        value = upload[field.name]
        if tuple(value.shape) != (tuple(like.shape) if field.shape is None else field.shape):
            return f"sent '{field.name}' of shape {tuple(value.shape)}"
        if value.dtype not in (torch.float32, torch.float64):
            return f"sent '{field.name}' as {value.dtype}"
        if not bool(torch.isfinite(value).all()):
            return f"sent a non-finite '{field.name}'"
    for field in channel.measured:
        if float(torch.linalg.vector_norm(upload[field.name].double())) > channel.max_upload_norm:
            return f"sent '{field.name}' longer than max_upload_norm = {channel.max_upload_norm:g}"
    return ""


def held_to_bounds(channel: RoundChannel, upload: Tensors) -> tuple[Tensors, str]:
    """``upload`` within the bounds that every client agreed to, and what was beyond them, empty if nothing was.

    An honest upload keeps to them and stays as it is, to the bit. A client that lies adds no more than an honest one
    could, because noise on the sum does not drop what is too long (``measured`` of the channel).
    """
    beyond = ""
    for name, most in channel.chain.side_values.items():
        within = upload[name].clamp(-most, most)
        if not torch.equal(within, upload[name]):
            beyond = f"sent a '{name}' of {float(upload[name]):g}, and ±{most:g} was agreed"
            upload = {**upload, name: within}
    if channel.chain.bounds_what_is_sent:
        update, bound = upload["update"], channel.round.bound
        within = within_bound(update, bound)
        if within is not update:
            beyond = f"sent an update of norm {norm(update):g}, and a bound of {bound:g} was agreed"
            upload = {**upload, "update": within}
    return upload, beyond


def _masked_problem(answer: Message) -> str:
    return "" if _is_bytes(answer.tensors.get(MASKED)) else "sent no masked vector"


def _parts(answers: Mapping[int, Message | str], name: str) -> dict[int, bytes]:
    """The bytes called ``name`` of those who answered with some."""
    found = {client: one.tensors.get(name) for client, one in answers.items() if isinstance(one, Message)}
    return {client: as_bytes(value) for client, value in found.items() if value is not None and _is_bytes(value)}


def _is_bytes(value: Tensor | None) -> bool:
    return value is not None and value.dtype == torch.uint8 and value.ndim == 1


def _since(kept: Tensors) -> int:
    return int(kept[KEPT_SINCE]) if KEPT_SINCE in kept else -1
