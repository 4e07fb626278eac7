"""Ledgers from and to the history of Opacus' accountants: a list of (noise multiplier, sample rate, steps).

Such a history speaks of Poisson-sampled Gaussian sums for one example added or removed, and of nothing else: what a
ledger holds besides cannot be written into one, and is refused. It does not say who saw what either, so whoever reads
one in has to. Nothing of Opacus is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from privfl.errors import PrivacyError, brief
from privfl.privacy.accounting.events import ADD_REMOVE, InfiniteLoss, describe, elementary
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import Cost, Observer, Release, Unit, unprotected
from privfl.validation import check_choice, check_count, check_number

Steps = tuple[float, float, int]
"""Noise multiplier, sample rate, and how many steps were taken with them."""

NAME = "gradients by Opacus"
MECHANISMS = ("prv", "rdp", "gdp")
"""Opacus' accountants: the history means the same in all of them, whatever ε they find for it."""


def ledger_from_opacus(
    history: Any, *, clients: int = 1, trained_at: Literal["server", "client"] = "server", poisson_sampling: bool = True
) -> Ledger:
    """The ledger of a training with Opacus, from its accountant, the accountant's state or its history.

    Args:
        history: ``privacy_engine.accountant``, its ``state_dict()``, or the list of (noise multiplier, sample rate,
            steps).
        clients: of the ledger; each of them is charged the whole history.
        trained_at: ``server``: the data lay with whoever trained, so that nothing protects them there, and the claim is
            about the released model. ``client``: every client trained on its own data and sent what came out.
        poisson_sampling: as it was handed to ``make_private``; the history does not tell.

    Raises:
        PrivacyError: the history is none of this kind, or what was done is not what it says.
    """
    check_count("clients", clients)
    check_choice("trained_at", trained_at, ("server", "client"))
    if not poisson_sampling:
        raise PrivacyError(
            "poisson_sampling is False: batches of shuffled data are no Poisson samples, and the ε that Opacus tells "
            "for them is not earned; train again with poisson_sampling=True"
        )
    ledger = Ledger(clients, [NAME])
    for noise_multiplier, sample_rate, steps in _checked(history):
        gaussian = GaussianDpEvent(noise_multiplier)
        cost = Cost(gaussian if sample_rate == 1 else PoissonSampledDpEvent(sample_rate, gaussian))
        whole = unprotected("the noise covers one example, not everything that one client holds")
        held = unprotected("whoever trained held the data")
        costs: dict[tuple[Unit, Observer], Cost] = {
            ("sample", "server"): cost if trained_at == "client" else held,
            ("sample", "public"): cost,
            ("client", "server"): whole if trained_at == "client" else held,
            ("client", "public"): whole,
        }
        ledger.record(Release.of(NAME, costs), None, steps)
    return ledger


def opacus_history(ledger: Ledger, *, observer: Observer = "public", client: int | None = None) -> list[Steps]:
    """The history that gives an accountant of Opacus what ``ledger`` holds for one example before ``observer``.

    Assign it to ``accountant.history``, or load :func:`opacus_state_dict`.

    Args:
        client: whose; may be left out where all clients released the same.

    Raises:
        PrivacyError: the ledger holds what such a history cannot say: another mechanism, another neighbouring relation,
            something without protection, or clients that differ.
    """
    check_choice("observer", observer, ("server", "public"))
    histories = ledger.histories("sample", observer)
    if client is None:
        if len(histories) > 1:
            raise PrivacyError(
                f"the {ledger.clients} clients of the ledger released {len(histories)} different histories, and Opacus "
                "has room for one; say whose, client=0"
            )
        row = 0
    elif 0 <= client < ledger.clients:
        row = int(histories.group[client])
    else:
        raise PrivacyError(f"client is {client}; the ledger has the clients 0 to {ledger.clients - 1}")
    found: list[Steps] = []
    for release, count in histories.row(row).items():
        cost = release.cost("sample", observer)
        assert cost is not None  # the histories of a cell hold what has a cost in it
        found += _as_steps(release.name, cost, count)
    return _joined(found)


def opacus_state_dict(
    ledger: Ledger,
    *,
    observer: Observer = "public",
    client: int | None = None,
    mechanism: Literal["prv", "rdp"] = "prv",
) -> dict[str, Any]:
    """What ``load_state_dict`` of Opacus' accountant ``mechanism`` takes; see :func:`opacus_history`."""
    check_choice("mechanism", mechanism, ("prv", "rdp"))
    return {"history": opacus_history(ledger, observer=observer, client=client), "mechanism": mechanism}


def _as_steps(name: str, cost: Cost, count: int) -> list[Steps]:
    if cost.event is None:
        raise PrivacyError(f"'{name}' is unprotected ({cost.reason}), which no history of Opacus says; export nothing")
    if cost.relation is not ADD_REMOVE:
        raise PrivacyError(
            f"'{name}' is charged under {cost.relation.name}, and Opacus' histories are about one example added or "
            "removed; account it with privfl"
        )
    try:
        kinds = elementary(cost.event, cost.relation, count)
    except InfiniteLoss:
        raise PrivacyError(f"'{name}' has no noise, so that ε is ∞; export nothing") from None
    found = []
    for (event, relation), number in kinds.items():
        sampled = isinstance(event, PoissonSampledDpEvent)
        rate, inner = (float(event.sampling_probability), event.event) if sampled else (1.0, event)
        if not isinstance(inner, GaussianDpEvent) or relation is not ADD_REMOVE:
            raise PrivacyError(
                f"'{name}' is {describe(event)}, and Opacus' histories hold Poisson-sampled Gaussian noise alone; "
                "account it with privfl"
            )
        found.append((float(inner.noise_multiplier), rate, int(number)))
    return found


def _joined(history: Iterable[Steps]) -> list[Steps]:
    """Equal neighbours as one entry, as Opacus' accountants write them."""
    joined: list[Steps] = []
    for noise_multiplier, sample_rate, steps in history:
        if joined and joined[-1][:2] == (noise_multiplier, sample_rate):
            steps += joined.pop()[2]
        joined.append((noise_multiplier, sample_rate, steps))
    return joined


def _checked(history: Any) -> list[Steps]:
    if not isinstance(history, Mapping | list | tuple) and hasattr(history, "state_dict"):
        history = history.state_dict()
    if isinstance(history, Mapping):
        mechanism = history.get("mechanism")
        if mechanism not in MECHANISMS or "history" not in history:
            raise PrivacyError(
                f"the state is of the accountant {brief(repr(mechanism))}; give that of one of Opacus' own: "
                f"{', '.join(MECHANISMS)}"
            )
        history = history["history"]
    if not isinstance(history, list | tuple):
        raise PrivacyError(
            f"the history is {brief(repr(history))}; give accountant.history, a list of (noise multiplier, sample "
            "rate, steps)"
        )
    return [_entry(place, entry) for place, entry in enumerate(history)]


def _entry(place: int, entry: Any) -> Steps:
    if not isinstance(entry, list | tuple) or len(entry) != 3:
        raise PrivacyError(
            f"entry {place} of the history is {brief(repr(entry))}; give (noise multiplier, sample rate, steps)"
        )
    noise_multiplier, sample_rate, steps = entry
    check_number(f"the noise multiplier of entry {place}", noise_multiplier, 0)
    check_number(f"the sample rate of entry {place}", sample_rate, 0, 1)
    check_count(f"the number of steps of entry {place}", steps, 0)
    return float(noise_multiplier), float(sample_rate), int(steps)
