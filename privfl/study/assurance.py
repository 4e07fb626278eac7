"""A statement in plain words: who can learn what about whom, and what is not protected.

Nothing is claimed here. Whatever a sentence says of an attacker follows from the pair (ε, δ) that the statement claims,
by :mod:`privfl.privacy.accounting.trade_off`, and is rounded against the claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from privfl.privacy.accounting.printed import round_up
from privfl.privacy.accounting.release import OBSERVERS, UNITS, Observer, Unit
from privfl.privacy.accounting.statement import Statement
from privfl.privacy.accounting.trade_off import most_accurate, most_found

FALSE_ALARM = 0.01
"""The share of innocents that the attacker of the first screen accuses."""
WHO = {"server": "The server, which sees every message", "public": "Anybody who sees the released models"}
ASKS = {
    "sample": "Can they tell whether one particular example, a row of somebody's data, was used?",
    "client": "Can they tell whether one particular client, with all that it sends, took part?",
}
USED = {
    "sample": ("examples that were not used", "of those that were used"),
    "client": ("clients that did not take part", "of those that did"),
}
NAMED = {"sample": "example", "client": "client"}
VERDICTS = (
    (0.55, "at most slightly better than by guessing"),
    (0.75, "at most somewhat better than by guessing"),
    (0.95, "perhaps often: the bound is weak"),
    (1.0, "perhaps nearly always: the bound rules out little"),
)
"""The answer by the bound on the share of right answers, up to each limit; the page prints the limits too."""


@dataclass(frozen=True)
class Answer:
    """What one observer can learn about one unit.

    Args:
        who, asks: observer and question, in words.
        verdict: in a few words.
        kind: ``bounded``, ``weak``, ``nothing`` (reaches the observer) or ``open`` (nothing is claimed).
        sentences: what it means, or why nothing is claimed.
        claim: ε and δ as the statement has them, empty where nothing is claimed.
    """

    who: str
    asks: str
    verdict: str
    kind: str
    sentences: tuple[str, ...]
    claim: str = ""


def answers(statement: Statement) -> list[Answer]:
    """One for each cell: those about an example first."""
    return [_answer(statement, unit, observer) for unit in UNITS for observer in reversed(OBSERVERS)]


def _answer(statement: Statement, unit: Unit, observer: Observer) -> Answer:
    cell = statement.cell(unit, observer)
    who, asks = WHO[observer], ASKS[unit]
    if cell.reasons or math.isinf(cell.epsilon):
        because = [f"The statement's reason: “{reason.rstrip('.')}”." for reason in cell.reasons]
        doubt = "No limit is proved on what they can learn about it."
        return Answer(who, asks, "assume yes: nothing is claimed", "open", (doubt, *because))
    if not cell.releases:
        reaches = ("Nothing derived from the data reaches them.",)
        return Answer(who, asks, "no better than by guessing", "nothing", reaches)
    shares = found(cell.epsilon, statement.delta), right(cell.epsilon, statement.delta)
    recognised, correct = ("perhaps 100\u00a0%" if one == "100\u00a0%" else f"at most {one}" for one in shares)
    others, used = USED[unit]
    sentences = [
        f"An attacker who may be wrong about 1 in 100 {others} recognises {recognised} {used}. Blind guessing "
        "recognises 1\u00a0%.",
        f"Where one {NAMED[unit]} is as likely in as out, the attacker's answer is right in {correct} of cases. "
        "Blind guessing is right in 50\u00a0%.",
    ]
    if observer == "server" and statement.server:
        sentences.append(f"This rests on secure aggregation: {statement.server.rstrip('.')}.")
    accurate = most_accurate(cell.epsilon, statement.delta)
    verdict = next(words for limit, words in VERDICTS if accurate <= limit)
    claim = f"ε = {round_up(cell.epsilon)}, δ = {statement.delta:g}"
    return Answer(who, asks, verdict, "bounded" if accurate <= VERDICTS[1][0] else "weak", tuple(sentences), claim)


def found(epsilon: float, delta: float) -> str:
    """The bound on the share that is recognised at the usual rate of false alarms, as text."""
    return at_most(most_found(epsilon, delta, FALSE_ALARM))


def right(epsilon: float, delta: float) -> str:
    """The bound on the share of right answers at even odds, as text."""
    return at_most(most_accurate(epsilon, delta))


def at_most(share: float) -> str:
    r"""An upper bound on a share in percent, rounded up to one digit, or to two above 99 %.

    >>> at_most(0.02719), at_most(0.5), at_most(0.99971), at_most(1.0)
    ('2.8\xa0%', '50.0\xa0%', '99.98\xa0%', '100\xa0%')
    """
    digits = 2 if share > 0.99 else 1
    percent = math.ceil(100 * share * 10**digits) / 10**digits
    return "100\u00a0%" if percent >= 100 else f"{percent:.{digits}f}\u00a0%"


def short(epsilon: float | None, delta: float) -> str:
    """One cell for a table: the bound and its ε; ``None`` is that nothing is claimed."""
    return "nothing claimed" if epsilon is None else f"≤ {found(epsilon, delta)} (ε = {round_up(epsilon)})"


def standing(statement: Statement) -> list[str]:
    """What holds for all the answers: a warning not to release first, then what the bounds rest on."""
    told = []
    if statement.reproducible_noise:
        told.append(
            "DO NOT RELEASE. The noise came from a fixed key; whoever knows that key can subtract it, and none of the "
            "bounds below holds against them."
        )
    if any(cell.releases and not cell.reasons for cell in statement.cells):
        told.append(
            "The bounds are proved, not measured. They hold for every attack, also for those not yet invented, and for "
            "an attacker who knows all other data. They assume that the program did what it says, which audits and "
            "attacks test, and that the server keeps to the protocol unless its answer says that it may lie. Each is "
            "that of the client who fares worst."
        )
    return told


def unprotected(statement: Statement, *, study: bool) -> list[str]:
    """What no cell of the statement covers."""
    told = [
        "Figures of merit on this page (accuracy, loss, fairness): computed without noise, on held-out examples that "
        "no mechanism protects. Publishing this page publishes them.",
        "Who holds how much: the section on clients and the warnings are true counts, meant for whoever runs the "
        "training.",
        "When messages were sent, and how large they were: timing and traffic are not considered.",
        "Facts about people that follow from what is true of everybody: a model that has learnt a general rule tells "
        "it, whether or not one person took part.",
    ]
    choice = (
        "The choice of a winner: whoever picks the best of these runs by its results reveals something about all of "
        "them. The winner's own statement does not cover that. What all runs together spent, told below, does, for the "
        "examples that were trained on, and only if every run that was looked at claims something."
        if study
        else "The choice of this run and its settings, if others were tried on the same data before: each of them "
        "counts as well."
    )
    told.insert(1, choice)
    if statement.public:
        told.append(f"What is taken as known to everybody. {statement.public}")
    return told + [f"{caveat[0].upper()}{caveat[1:]}" for caveat in statement.caveats]
