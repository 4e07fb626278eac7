"""The contract of an attack: it guesses from a transcript and public data, and a judge who knows the answers scores it.

    transcript = pf.Transcript.load("runs/fedavg")
    result = LossThreshold().run(transcript, auxiliary)
    print(result)

``run`` takes the answers out of the auxiliary data before ``guess`` sees them, so that an attack reaches no client's
data whatever it does; ``judge`` compares the guess, and the nulls' guesses, with the truth.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from attacks.auxiliary import Auxiliary, checked_images
from attacks.observations.declared import Declared
from attacks.result import AttackResult
from privfl.algorithms.base import Algorithm
from privfl.errors import ConfigError
from privfl.federation.task import Task
from privfl.privacy.accounting.release import Observer
from privfl.simulation.result import Run
from privfl.simulation.transcript import Transcript
from privfl.validation import said

Power = Literal["passive", "active", "poisoning"]
"""What the attacker does: it watches, it is the server and crafts what it sends, or it is a client among the others."""


@dataclass(frozen=True)
class Needs:
    """What an attack reads.

    Args:
        fields: of the transcript, besides the public facts: names of upload fields, ``sizes`` (answers about sizes), or
            ``released`` (the models that the server evaluates). Upload fields that are not named are held back.
        public: whether it needs public records of the victims' domain.
        candidates: whether it needs records to ask about.
        truth: what its judge reads, as :class:`attacks.auxiliary.Auxiliary` names it.
    """

    fields: tuple[str, ...] = ()
    public: bool = False
    candidates: bool = False
    truth: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """A value of one of an attack's settings under which papers know the attack by a name of its own.

    Args:
        setting: name of the setting.
        value: what it is set to.
        title: what papers call that.
        source: the paper.
    """

    setting: str
    value: str
    title: str
    source: str


@dataclass(frozen=True)
class Attack(ABC):
    """Base of all attacks: a frozen dataclass whose fields are its settings.

    Class attributes:
        name: how configuration files and results call it.
        observer: the least privileged observer whose view suffices.
        power: what the attacker has to do; a run that is attacked by more than watching is one that was :meth:`staged`.
        staged_rounds: how many rounds of a run are enough for the attack; ``None`` if it takes all.
        needs: what it reads; of the messages :meth:`run` hands over no other fields.
        needs_classes: whether it takes targets for classes, or losses for those of a classifier.
        choices: what its settings choose among; each is listed by the name that papers give it.
    """

    name: ClassVar[str]
    observer: ClassVar[Observer] = "public"
    power: ClassVar[Power] = "passive"
    staged_rounds: ClassVar[int | None] = None
    needs: ClassVar[Needs] = Needs()
    needs_classes: ClassVar[bool] = True
    choices: ClassVar[tuple[Choice, ...]] = ()

    @abstractmethod
    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> Any:
        """What the attack believes, from what was seen and public data alone; the nulls' beliefs with it."""

    @abstractmethod
    def judge(self, guess: Any, auxiliary: Auxiliary, seconds: float) -> AttackResult:
        """The result of a ``guess`` that took ``seconds``; ``auxiliary`` holds the truth."""

    def staged(self, task: Task, algorithm: Algorithm, auxiliary: Auxiliary) -> tuple[Task, Algorithm]:
        """What the attacker makes of a run before it takes place; one that only watches leaves it as it is.

        It changes what the attacker controls alone: what its server sends, or the records of a client of its own.
        """
        return task, algorithm

    def check_kind(self, kind: str) -> None:
        """Refuse a task of a ``kind`` that the attack is not for; a judge asks before it deals records by their class.

        Raises:
            ConfigError: the attack takes targets for classes, and the ``kind`` has none.
        """
        if self.needs_classes and kind != "classification":
            raise ConfigError(
                f"{self.name} works with the class of each record, and records of a task of the kind {kind} have none; "
                "leave it out"
            )

    def check_images(self, auxiliary: Auxiliary) -> None:
        """Refuse true images by which no guess could be judged, before any work is done on one.

        Raises:
            ConfigError: an attack on images has none as its truth, they are no pixels in [0, 1], or another number
                than its ``batch``.
        """
        if "images" not in self.needs.truth:
            return
        images, batch = checked_images(auxiliary.answer("images"), "truth['images']"), getattr(self, "batch", None)
        if batch is not None and len(images) != batch:
            raise ConfigError(
                f"the truth has {len(images)} images and {self.name} looks for batch = {batch}; give the image of "
                "every record behind the update, and as many as batch"
            )

    def run(self, seen: Transcript | Run | None, auxiliary: Auxiliary) -> AttackResult:
        """Guess without the answers, then be judged by them.

        The guess is from what :attr:`observer` sees, and of messages from the fields that :attr:`needs` names.

        Args:
            seen: what an observer saw of a run, or the run itself if it was recorded.

        Raises:
            ConfigError: nothing was recorded, the transcript or the auxiliary data lack something that the attack
                needs, it reads what it does not name, records are not what the run's network takes, or its task is of
                another kind.
        """
        seen = transcript_of(seen)
        seen = seen.before_public() if self.observer == "public" else Declared(seen, self.needs.fields, self.name)
        self.check_kind(seen.facts.kind)
        if not isinstance(auxiliary, Auxiliary):
            raise ConfigError(
                f"the auxiliary data are {said(auxiliary)}; give attacks.Auxiliary(public=…, candidates=…, truth=…)"
            )
        auxiliary.check_inputs(seen.facts.input_shape, tokens=seen.facts.vocabulary is not None)
        self.check_images(auxiliary)
        began = time.perf_counter()
        guess = self.guess(seen, auxiliary.for_attacker())
        return self.judge(guess, auxiliary, time.perf_counter() - began)


def transcript_of(seen: Any) -> Transcript:
    """The transcript of a run that is ``seen``, or a transcript as it is.

    Raises:
        ConfigError: it is neither, or the run was not recorded.
    """
    found = seen.transcript if isinstance(seen, Run) else seen
    if found is None:
        raise ConfigError("nothing of the run was recorded, so there is no transcript; run it with record=True")
    if not isinstance(found, Transcript):
        raise ConfigError(
            f"an attack reads a transcript, not {said(found)}; give run.transcript of a run with record=True, or "
            "pf.Transcript.load of its directory"
        )
    return found
