"""Mechanisms as somebody outside of the package writes them: one class each, and what the statement then says."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from dp_accounting import GaussianDpEvent

import privfl as pf
from privfl.privacy.channel import link_noise
from privfl.privacy.mechanisms.mechanism import Cover, Mechanism

CLIENTS, BOUND, KEPT = 6, 0.5, 20
UNIFORM = pf.FedAvg(weighting="uniform")
DP_SGD = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.1)
SECURE = pf.SecureSum(mode="ideal")


@dataclass(frozen=True)
class TopK(Mechanism):
    """Keep the ``k`` largest numbers of an update (Aji and Heafield 2017)."""

    kind = "transform"

    k: int

    def at_client(self, update, noise, round):
        sparse = torch.zeros_like(update)
        largest = update.abs().topk(self.k).indices
        sparse[largest] = update[largest]
        return sparse


@dataclass(frozen=True)
class EightBits(Mechanism):
    """Round at random to 255 levels between ± the largest number (QSGD; Alistarh et al. 2017)."""

    kind = "transform"

    def at_client(self, update, noise, round):
        step = max(float(update.abs().max()), 1e-30) / 127
        coins = torch.from_numpy(noise.uniform(update.numel())).to(update)
        return (update / step + coins).floor() * step


@dataclass(frozen=True)
class CoarseGaussian(Mechanism):
    """Gaussian noise on the sum, rounded to a coarse grid: post-processing, so it costs what the noise costs."""

    kind = "noise"
    adds_at = "server"

    multiplier: float
    grid: float = 2.0**-10

    def at_server(self, total, noise, round):
        noise.stream.add_gaussian_(total["update"], self.multiplier * round.bound * round.lengthening)
        total["update"] = (total["update"] / self.grid).round() * self.grid

    def cover(self, round):
        return Cover.gaussian(GaussianDpEvent(self.multiplier))


@dataclass(frozen=True)
class UnstatedNoise(Mechanism):
    """The same noise by somebody who has not worked out what it costs."""

    kind = "noise"
    adds_at = "server"

    multiplier: float

    def at_server(self, total, noise, round):
        noise.stream.add_gaussian_(total["update"], self.multiplier * round.bound * round.lengthening)


@dataclass(frozen=True)
class Clip1000(pf.Clip):
    """A bound that is none."""

    def at_client(self, update, noise, round):
        return update * 1000


@dataclass(frozen=True)
class QuietGaussian(pf.GaussianNoise):
    """Says what its parent says and adds a hundredth of its noise."""

    def at_server(self, total, noise, round):
        noise.stream.add_gaussian_(total["update"], 0.01 * self.noise_multiplier * round.bound)


@dataclass(frozen=True)
class Amplifier(Mechanism):
    """A transform that breaks the bound that was put before it."""

    kind: ClassVar[str] = "transform"

    def at_client(self, update, noise, round):
        return update * 1000


@pytest.fixture(scope="module")
def task():
    return pf.load("digits", partition=pf.IID(clients=CLIENTS), model="logistic")


def train(task, *chain, algorithm=UNIFORM, engine="loop", learning_rate=0.1, **settings):
    privacy = settings.pop("privacy", pf.Privacy(noise_key=1))
    return pf.simulate(
        task,
        algorithm,
        rounds=2,
        training=pf.LocalTraining(learning_rate=learning_rate, steps=2),
        privacy=replace(privacy, update=chain),
        seed=3,
        execution=pf.Execution(engine=engine, workers=1),
        record=["server"],
        **settings,
    )


def epsilons(run):
    return {f"{cell.unit}/{cell.observer}": cell.epsilon for cell in run.statement.cells}


def uploads(run):
    return [upload["update"] for seen in run.transcript for upload in seen.uploads.values()]


NOISE = pf.GaussianNoise(2.0)
AT_CLIENT = pf.GaussianNoise(2.0, at="client")
SHARES = pf.DiscreteGaussianNoise(2.0)
CLIP = pf.Clip(BOUND)
WHERE_THEY_CAN_STAND = {
    "alone": ((), ()),
    "before noise at the server": ((CLIP,), (NOISE,)),
    "before the bound": ((), (CLIP, NOISE)),
    "before noise at the client": ((CLIP,), (AT_CLIENT,)),
    "after noise at the client": ((CLIP, AT_CLIENT), ()),
    "before a secure sum": ((), (SECURE,)),
    "before a secure sum with noise": ((CLIP,), (SECURE, NOISE)),
    "before a secure sum with shares": ((CLIP,), (SHARES, SECURE)),
    "before correlated noise": ((CLIP,), (pf.TreeNoise(2.0, restart=1),)),
}


@pytest.mark.parametrize("place", WHERE_THEY_CAN_STAND)
@pytest.mark.parametrize("transform", [TopK(KEPT), EightBits()], ids=["top-k", "8 bits"])
def test_a_transform_changes_the_model_and_no_claim(task, place, transform):
    before, after = WHERE_THEY_CAN_STAND[place]
    privacy = pf.Privacy(noise_key=1, training=DP_SGD if place in ("alone", "before a secure sum") else None)
    plain = train(task, *before, *after, privacy=privacy)
    changed = train(task, *before, transform, *after, privacy=privacy)
    assert epsilons(changed) == epsilons(plain)
    assert not torch.equal(changed.parameters, plain.parameters)
    assert changed.summary["dropped"] == {}
    assert bool(changed.parameters.isfinite().all())


def test_top_k_leaves_k_numbers_and_eight_bits_leave_255_levels(task):
    assert {int((update != 0).sum()) for update in uploads(train(task, TopK(KEPT)))} == {KEPT}
    levels = {len(update.unique()) for update in uploads(train(task, EightBits()))}
    assert 50 < max(levels) <= 255
    plain, rounded = (uploads(train(task, *chain))[0] for chain in ((), (EightBits(),)))
    assert float((plain - rounded).abs().max()) <= float(plain.abs().max()) / 127 * (1 + 1e-5)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize(
    "chain", [(CLIP, EightBits(), NOISE), (CLIP, Amplifier(), NOISE), (CLIP, Amplifier(), SECURE, NOISE)]
)
def test_what_leaves_keeps_to_the_bound_whatever_stands_behind_the_clip(task, engine, chain, monkeypatch):
    seen = []
    from privfl.engine import workspace

    right = workspace.send

    def send(*arguments):
        result = right(*arguments)
        seen.append(float(result.upload["update"].double().norm()))
        return result

    monkeypatch.setattr(f"privfl.engine.{engine}.send", send)
    run = train(task, *chain, engine=engine, learning_rate=1.0)
    assert len(seen) >= 2 * CLIENTS
    assert max(seen) <= BOUND
    assert max(seen) > 0.99 * BOUND
    assert epsilons(run)["client/public"] < 10
    seen.clear()
    monkeypatch.setattr("privfl.privacy.channel.client_side.within_bound", lambda update, bound: update)
    train(task, *chain, engine=engine, learning_rate=1.0)
    assert max(seen) > BOUND, "the planted defect would have been seen"


def test_noise_that_states_its_cover_is_charged_for_it(task):
    stated, shipped = (train(task, CLIP, noise) for noise in (CoarseGaussian(2.0), NOISE))
    assert epsilons(stated) == epsilons(shipped)
    assert epsilons(stated)["client/public"] < 10
    assert epsilons(stated)["client/server"] == float("inf")
    secure = train(task, CLIP, SECURE, CoarseGaussian(2.0))
    assert epsilons(secure) == epsilons(stated)


@pytest.mark.usefixtures("common_noise")
def test_noise_adds_what_it_says_to_the_sum(task, monkeypatch):
    """Both classes are made to draw their noise from the same stream, so that models differ by rounding."""
    monkeypatch.setattr(link_noise, "of_noise", lambda link, noise, label, round: noise)
    stated, shipped = (train(task, CLIP, noise).parameters for noise in (CoarseGaussian(2.0, 2.0**-20), NOISE))
    assert torch.allclose(stated, shipped, atol=1e-5)
    assert not torch.allclose(stated, train(task, CLIP).parameters, atol=1e-2)


@dataclass(frozen=True)
class CountingClip(pf.Clip):
    """Counts the updates within the bound, and leaves the count as it is."""

    side_values: ClassVar = {"within": 1.0}
    server_state: ClassVar = ("share_within",)

    def norm_bound(self, server):
        return self.max_norm

    def side_report(self, update, round):
        return {"within": float(update.norm() <= self.max_norm)}

    def at_server(self, total, noise, round):
        total["share_within"] = total.pop("within") / round.expected


UNCLAIMED = {
    "a bound that sends what no noise covers": (
        (CountingClip(BOUND), NOISE),
        "CountingClip states no update_multiplier of its own",
    ),
    "noise without cover": ((CLIP, UnstatedNoise(2.0)), "UnstatedNoise states no cover of its own"),
    "noise without cover after a secure sum": ((CLIP, SECURE, UnstatedNoise(2.0)), "UnstatedNoise states no cover"),
    "a changed bound": ((Clip1000(BOUND), NOISE), "Clip1000 changes at_client of Clip"),
    "a changed bound before noise of clients": ((Clip1000(BOUND), AT_CLIENT), "Clip1000 changes at_client of Clip"),
    "a changed bound before shares": ((Clip1000(BOUND), SHARES, SECURE), "Clip1000 changes at_client of Clip"),
    "changed noise": ((CLIP, QuietGaussian(2.0)), "QuietGaussian changes at_server of GaussianNoise"),
}


@pytest.mark.parametrize("case", UNCLAIMED)
def test_what_no_class_states_is_claimed_in_no_cell_and_the_statement_names_it(task, case):
    chain, reason = UNCLAIMED[case]
    run = train(task, *chain)
    assert set(epsilons(run).values()) == {float("inf")}
    cells = [run.statement.cell(unit, "public") for unit in ("sample", "client")]
    assert all(any(reason in why for why in cell.reasons) for cell in cells), [cell.reasons for cell in cells]
    assert reason.split()[0] in str(run.statement)


@pytest.mark.parametrize("case", UNCLAIMED)
def test_what_no_class_states_leaves_the_claim_of_dp_sgd_as_it_is(task, case):
    """The chain sees noisy gradients only: whatever it does with them is post-processing."""
    privacy = pf.Privacy(noise_key=1, training=DP_SGD)
    alone, under = epsilons(train(task, privacy=privacy)), epsilons(train(task, *UNCLAIMED[case][0], privacy=privacy))
    assert under == alone
    assert under["sample/server"] < 10


def test_a_changed_bound_that_the_channel_enforces_still_moves_the_sum_by_no_more(task):
    assert max(float(update.double().norm()) for update in uploads(train(task, Clip1000(BOUND), NOISE))) <= BOUND


@pytest.mark.parametrize(
    ("link", "finite"),
    [(pf.Clip(0.1), True), (TopK(KEPT), False), (EightBits(), False), (Clip1000(0.1), False)],
    ids=["clip", "top-k", "8 bits", "changed clip"],
)
def test_noise_on_a_sum_of_gradients_does_not_cover_what_a_link_may_make_of_one_sample(task, link, finite):
    """The largest numbers of two updates that differ by one sample need not be the same ones."""
    privacy = pf.Privacy(noise_key=1, training=pf.DPSGD(noise_multiplier=5.0, noise_at="server"))
    sampling = pf.FedSampling(samples_per_round=300)
    sized = replace(privacy, size=pf.LaplaceSize(epsilon=3.0, bound=400), max_size_error=100.0)
    run = train(task, link, algorithm=sampling, privacy=sized)
    assert (epsilons(run)["sample/public"] < float("inf")) == finite
    if not finite:
        assert any(type(link).__name__ in reason for reason in run.statement.cell("sample", "public").reasons)


def test_a_transform_at_the_server_sees_noisy_sums_only(task):
    """Whatever it makes of them is post-processing: neither the bare sum nor what clients sent beside it is there."""
    seen, adaptive = [], pf.AdaptiveClip(BOUND, count_noise=5.0)

    @dataclass(frozen=True)
    class Looking(Mechanism):
        kind = "transform"

        def at_server(self, total, noise, round):
            seen.append((round.number, sorted(total), total["update"].clone()))

    for chain in ((adaptive, Looking(), NOISE), (Looking(), adaptive, NOISE)):
        seen.clear()
        train(task, *chain)
        assert [(number, names) for number, names, _ in seen] == [
            (0, ["clip_norm", "update"]),
            (1, ["clip_norm", "update"]),
        ]
        for _, _, total in seen:  # noise of deviation 2 · BOUND on each number beside a sum of norm at most 6 · BOUND
            assert float(total.std()) > BOUND


def test_a_subclass_that_states_its_own_cover_is_charged_for_that(task):
    @dataclass(frozen=True)
    class HalfGaussian(pf.GaussianNoise):
        def at_server(self, total, noise, round):
            noise.stream.add_gaussian_(total["update"], 0.5 * self.noise_multiplier * round.bound)

        def cover(self, round):
            return Cover.gaussian(GaussianDpEvent(0.5 * self.noise_multiplier))

    assert epsilons(train(task, CLIP, HalfGaussian(4.0))) == epsilons(train(task, CLIP, NOISE))


def test_a_subclass_that_changes_settings_only_keeps_the_claim(task):
    @dataclass(frozen=True)
    class TwiceGaussian(pf.GaussianNoise):
        """GaussianNoise with a default."""

        noise_multiplier: float = 2.0

    assert epsilons(train(task, CLIP, TwiceGaussian())) == epsilons(train(task, CLIP, NOISE))


@pytest.mark.parametrize("after", [(), (SECURE,), (NOISE,), (AT_CLIENT,)], ids=["", "sum", "server", "client"])
def test_an_update_of_another_shape_is_a_broken_upload(task, after):
    """Of some updates only: one that makes it of all is refused."""
    calls = []

    @dataclass(frozen=True)
    class Half(Mechanism):
        kind = "transform"

        def at_client(self, update, noise, round):
            calls.append(round.number)  # the first is the trial before the run
            return update if len(calls) == 1 or not bool((update != 0).any()) else update[: len(update) // 2]

    chain = (Half(), CLIP, *after) if after and after[0] is not SECURE else (Half(), *after)
    run = train(task, *chain)
    if any(link.kind == "noise" for link in after):  # its absence would tell
        assert run.summary["dropped"] == {}
        assert f"{2 * CLIENTS} Half made an update of shape (325,) of one of (650,); let" in str(run.warnings)
    else:
        (reason,) = [why for why in run.summary["dropped"] if "secure sum" not in why]
        assert reason.startswith("Half made an update of shape (325,) of one of (650,); let at_client return one of")
        assert run.failure.endswith("; correct that mechanism of privacy.update")
        assert run.summary["dropped"][reason] == 2 * CLIENTS


def test_a_link_that_is_noise_and_breaks_zeros_too_ends_the_run(task):
    @dataclass(frozen=True)
    class Nothing(Mechanism):
        kind = "noise"
        adds_at = "client"

        def at_client(self, update, noise, round):
            return update * float("nan") if round.number else update

    with pytest.raises(pf.PrivacyError, match="not finite"):
        train(task, CLIP, Nothing())
