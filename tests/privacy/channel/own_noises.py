"""Noise as users write it, right or with a mistake, for the tests of what is tried of it before a run."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from dp_accounting import GaussianDpEvent

import privfl as pf
from privfl.privacy.mechanisms.mechanism import ChannelRound, ChannelRun, Cover
from privfl.privacy.mechanisms.participation import ParticipationPattern

CLIP = pf.Clip(0.5)


def run_of(length, lengthening=1.0):
    return ChannelRun(length, 10.0, ParticipationPattern(10, 1, 1), 0.5, lengthening, CLIP)


def round_of(length):
    return ChannelRound(length, 10.0, ParticipationPattern(10, 1, 1), 0.5, 1.0, CLIP, 0, True)


@dataclass(frozen=True)
class Noise(pf.Mechanism):
    """Gaussian noise as a user writes it, or with a mistake."""

    kind: ClassVar[str] = "noise"
    mistake: str = ""
    z: float = 2.0

    def cover(self, round):
        return Cover.gaussian(GaussianDpEvent(self.z))

    def numbers(self, noise, size, round):
        if self.mistake == "fails":
            return noise.gaussian(size)
        if self.mistake == "own generator":
            return np.random.default_rng(round.number).normal(0, self.z * round.bound, size)
        if self.mistake == "fresh generator":
            return np.random.default_rng().normal(0, self.z * round.bound, size)
        scale = {"per step": 0.5, "variance": self.z * round.bound, "loud": 2.0}.get(self.mistake, 1.0)
        numbers = scale * self.z * round.bound * noise.normal(size)
        if self.mistake == "first half":
            numbers[size // 2 :] = 0
        if self.mistake == "not the last":
            numbers[-1] = 0
        if self.mistake == "loud or not":
            numbers *= 2.0 * (np.arange(size) % 2)
        if self.mistake == "loud or quiet":
            numbers *= np.where(np.arange(size) % 2, 2.0, 0.001)
        if self.mistake == "five":
            numbers = 3 * np.resize(numbers[:5], size)
        if self.mistake == "five, mixed":
            numbers = 3 * np.random.default_rng(0).normal(size=(size, 5)) @ numbers[:5]
        if self.mistake == "one twice":
            numbers[0] = numbers[-1]
        if self.mistake == "opposite":
            numbers[: size // 2] = -numbers[size - size // 2 :]
        if self.mistake == "multiples":
            numbers[: size // 2] = 1.5 * numbers[size - size // 2 :]
        if self.mistake == "cancels":
            numbers = 1.1 * (numbers - numbers.mean())
        if self.mistake == "first round":
            numbers *= round.number == 0
        return numbers


@dataclass(frozen=True)
class WhereSomethingIs(Noise):
    """None for an update of zeros, which then says of itself that it is one, or no number at all."""

    adds_at: ClassVar[str] = "client"

    def at_client(self, update, noise, round):
        if self.mistake == "relative":
            return update + noise.add_gaussian_(update.clone(), self.z * round.bound) / update.norm() * update.norm()
        return update if update.norm() == 0 else noise.add_gaussian_(update, self.z * round.bound)


@dataclass(frozen=True)
class ByTheUpdate(Noise):
    """Lets the update decide of the noise, or of more than the update; or makes something of what is noisy."""

    adds_at: ClassVar[str] = "client"
    z: float = 1.0

    def at_client(self, update, noise, round):
        length, scale, given = float(update.norm()), self.z * round.bound, update.clone()
        noisy = noise.add_gaussian_(update, scale)
        match self.mistake:
            case "longer":
                return noisy * (1 + length)
            case "shorter":
                return noisy * 1.5 / (1 + length)
            case "none for long ones":
                return given if length > 0.6 * round.bound else noisy
            case "moved":
                return noisy + 10 * length
            case "tenfold":
                return noisy + 9 * given
            case "heavier layer":
                noisy[::2] += torch.from_numpy(10 * scale * noise.normal(len(noisy[::2]))).float()
            case "one more for all":
                noisy += float(scale * noise.normal(1)[0])
            case "half":
                noisy -= 0.5 * given
            case "rounded by a quarter":
                return noisy.div(scale / 4).round().mul(scale / 4)
            case "rounded by all of it":
                return noisy.div(scale).round().mul(scale)
            case "the largest":
                return torch.where(noisy.abs() > 0.674 * scale, noisy, 0)
            case "bfloat16":
                return noisy.bfloat16().float()
        return noisy


@dataclass(frozen=True)
class WithMemory(Noise):
    """Adds half of the last round's noise to each round's, as correlated noise does."""

    adds_at: ClassVar[str] = "server"
    last: dict[str, Any] = field(default_factory=dict, compare=False)

    def at_server(self, total, noise, round):
        fresh = noise.stream.add_gaussian_(torch.zeros_like(total["update"]), self.z * round.bound)
        total["update"] += fresh + 0.5 * self.last.get("noise", torch.zeros_like(fresh))
        self.last["noise"] = fresh


@dataclass(frozen=True)
class Whole(Noise):
    """Whole numbers, of which many are 0 and most are alike, as right noise may be that is no Gaussian one."""

    adds_at: ClassVar[str] = "client"

    def cover(self, round):
        return Cover.nothing("the laws of this noise are left out here")

    def at_client(self, update, noise, round):
        return update + torch.from_numpy(np.rint(self.z * noise.normal(len(update)))).to(update.dtype)


@dataclass(frozen=True)
class AtClient(Noise):
    adds_at: ClassVar[str] = "client"

    def cover(self, round):
        return Cover.gaussian(GaussianDpEvent(self.z))

    def at_client(self, update, noise, round):
        if self.mistake == "copy":
            noise.add_gaussian_(update.double(), self.z * round.bound)
            return update
        return update + torch.from_numpy(self.numbers(noise, len(update), round)).to(update.dtype)


@dataclass(frozen=True)
class AtServer(Noise):
    adds_at: ClassVar[str] = "server"

    def cover(self, round):
        return Cover.gaussian(GaussianDpEvent(self.z))

    def at_server(self, total, noise, round):
        numbers = torch.from_numpy(self.numbers(noise.stream, len(total["update"]), round)) * round.lengthening
        if self.mistake == "copy":
            return {**total, "update": total["update"] + numbers}
        total["update"] += numbers
        return None
