"""The membership game: who asks, about which records, and what every membership attack shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.attack import Attack
from attacks.auxiliary import Auxiliary, Records
from attacks.membership.result import MembershipResult, membership_result
from attacks.metrics.distinguishing import Scores
from privfl.errors import ConfigError
from privfl.schema import plain
from privfl.validation import said

RECORDS = 20
"""With which a user is asked about, at most."""


def check_classes(*sides: Records) -> None:
    """Refuse what is no records, or records without classes: a game has as many of each class on either side.

    Raises:
        ConfigError: as said.
    """
    for side in sides:
        if not isinstance(side, Records):
            raise ConfigError(f"members or others are {said(side)}; give attacks.Records(inputs, targets)")
        if side.targets.dim() != 1 or side.targets.is_floating_point():
            raise ConfigError(
                f"the targets are {side.targets.dtype} {tuple(side.targets.shape)}, and a membership game deals out "
                "records by their class; give integer classes [N]"
            )


def membership_game(
    members: Records, others: Records, generator: torch.Generator, public: Records | None = None
) -> Auxiliary:
    """Candidates, half of them members at most, with the same classes on both sides, in random order.

    Members and non-members of unlike classes could be told apart without any attack, so of every class as many are
    taken from either side as the smaller side has. ``public`` is what the attacker owns besides.

    Raises:
        ConfigError: the targets are no classes, the two sides have none in common, or ``generator`` is not PyTorch's.
    """
    if not isinstance(generator, torch.Generator):
        raise ConfigError(
            f"generator is {said(generator)}; give a torch.Generator, as by torch.Generator().manual_seed(0)"
        )
    check_classes(members, others)
    chosen: tuple[list[Tensor], list[Tensor]] = ([], [])
    for label in sorted({*members.targets.tolist(), *others.targets.tolist()}):
        sides = [(side.targets == label).nonzero().flatten() for side in (members, others)]
        count = min(map(len, sides))
        for rows, found in zip(sides, chosen, strict=True):
            found.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    ins, outs = (torch.cat(found) for found in chosen)
    if not len(ins):
        raise ConfigError("members and others have no class in common; draw the others from the members' classes")
    order = torch.randperm(2 * len(ins), generator=generator)
    candidates = Records(
        torch.cat([members.inputs[ins], others.inputs[outs]])[order],
        torch.cat([members.targets[ins], others.targets[outs]])[order],
    )
    truth = torch.cat([torch.ones(len(ins), dtype=torch.bool), torch.zeros(len(outs), dtype=torch.bool)])[order]
    return Auxiliary(public, candidates, {"members": truth})


def users_game(
    held: Records,
    users: Sequence[Tensor],
    others: Records,
    public: Records,
    candidates: int,
    generator: torch.Generator,
) -> Auxiliary:
    """Users who took part, and as many who did not: at most 20 records of each, of the same classes in every pair.

    Who did not take part is made of ``others`` without repetition, so that of the users with rows ``users`` of ``held``
    some may have nobody to be compared with. They are left out, as are users beyond ``candidates`` records in all.

    Raises:
        ConfigError: the targets are no classes, or not one user is left.
    """
    check_classes(held, others)
    free = torch.ones(len(others), dtype=torch.bool)
    found: list[Records] = []
    for number in torch.randperm(len(users), generator=generator).tolist():
        rows = users[number][torch.randperm(len(users[number]), generator=generator)[:RECORDS]]
        mine, against = held[rows], []
        for label in mine.targets.tolist():
            like = (free & (others.targets == label)).nonzero().flatten()
            if len(like):
                against.append(int(like[torch.randint(len(like), (), generator=generator)]))
                free[against[-1]] = False
        if len(against) == len(mine) and sum(map(len, found)) + 2 * len(mine) <= candidates:
            found += [mine, others[torch.tensor(against)]]
    if not found:
        raise ConfigError("no user has as many held-out records of its classes beside it; keep more out of training")
    return Auxiliary(
        public,
        Records(torch.cat([one.inputs for one in found]), torch.cat([one.targets for one in found])),
        {"users": torch.tensor([True, False] * (len(found) // 2))},
        torch.repeat_interleave(torch.arange(len(found)), torch.tensor([len(one) for one in found])),
    )


@dataclass(frozen=True)
class Guess:
    """What a membership attack believes: ``scores`` [n] of the candidates, and what its nulls gave them."""

    scores: Scores
    nulls: Mapping[str, Scores]
    targets: Tensor


@dataclass(frozen=True)
class MembershipAttack(Attack):
    """Base of membership attacks, whose guesses are judged alike."""

    def judge(self, guess: Guess, auxiliary: Auxiliary, seconds: float) -> MembershipResult:
        return membership_result(
            self.name,
            guess.scores,
            auxiliary.answer("members").numpy(),
            null_scores=guess.nulls,
            labels=guess.targets.numpy(),
            seconds=seconds,
            settings=plain(self),
        )
