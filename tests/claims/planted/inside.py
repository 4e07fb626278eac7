"""Changes of privfl itself, each of which breaks a claim: (owner, attribute, replacement)."""

import sys
from dataclasses import replace

import numpy as np
import torch

from audits.fuzz.tape import replaced
from privfl.engine import loop
from privfl.engine.workspace import RoundContext
from privfl.federation.cohorts import PoissonCohort, Selection
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.channel import channel, client_side
from privfl.privacy.channel.channel import ChannelSpec, RunChannel
from privfl.privacy.clipping import factors
from privfl.privacy.door import keeper
from privfl.privacy.door.batch_plans import Poisson
from privfl.privacy.door.client_door import ClientDoor
from privfl.privacy.door.cohort_door import CohortDoor
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.mechanisms.adaptive_clip import CLIP_NORM, UNCLIPPED, AdaptiveClip
from privfl.privacy.mechanisms.clip import Clip
from privfl.privacy.mechanisms.correlated import CorrelatedNoiseState
from privfl.privacy.mechanisms.distributed import DistributedNoise
from privfl.privacy.mechanisms.gaussian import GaussianNoise
from privfl.privacy.mechanisms.mechanism import Cover
from privfl.privacy.noise import source
from privfl.privacy.noise.source import NoiseSource, NoiseStream
from privfl.privacy.sizes.known_sizes import Sizes
from privfl.randomness import numpy_stream
from privfl.simulation import simulation


def everywhere(name, original, new):
    """``new`` for ``original`` in every module of privfl that calls it ``name``."""
    modules = [module for key, module in list(sys.modules.items()) if key.startswith("privfl.")]
    return [(module, name, new) for module in modules if vars(module).get(name) is original]


def changed(changes):
    """The changes of one defect, in effect for a while."""
    return replaced(changes())


def noise_without_bound():
    """In stacks of clients, DP-SGD's noise has the deviation z instead of z·C."""
    add, build, bounds = keeper._add_noise_, CohortDoor.__init__, []

    def begin(self, *given):
        build(self, *given)
        bounds[:] = [self._dpsgd.max_grad_norm if self._dpsgd else 1.0]

    def noise(total, streams, deviations):
        add(total, streams, [one / bounds[0] for one in deviations] if bounds else deviations)

    return [(CohortDoor, "__init__", begin), (keeper, "_add_noise_", noise)]


def one_noise_for_all():
    """All clients of a stack carry the first one's noise."""
    add = source.add_gaussian_rows_

    def shared(streams, rows, deviations):
        before = rows.clone()
        add(streams, rows, deviations)
        if len(rows) > 1:
            rows[:] = before + (rows[0] - before[0])
        return rows

    return everywhere("add_gaussian_rows_", add, shared)


def half_the_noise():
    """The noise source adds half of what it is asked for."""
    add = source.add_gaussian_rows_

    def half(streams, rows, deviations):
        return add(streams, rows, [one / 2 for one in deviations])

    return everywhere("add_gaussian_rows_", add, half)


def noise_of_whole_numbers():
    """The noise is rounded to whole deviations: its low bits tell the value."""
    add = source.add_gaussian_rows_

    def coarse(streams, rows, deviations):
        noise = add(streams, torch.zeros_like(rows), deviations)
        return rows.add_(noise.sign() * torch.tensor(deviations, dtype=rows.dtype)[:, None] * 0.5)

    return everywhere("add_gaussian_rows_", add, coarse)


def half_deviation_of_totals():
    """Totals get half of their noise."""
    return [(NoisyTotal, "deviation", property(lambda self: self.max_norm * self.noise_multiplier / 2))]


def totals_without_clipping():
    """Single statistics are not clipped."""
    return [(NoisyTotal, "clip", lambda self, values: values.double() * 1e3)]


def bit_without_noise():
    """The bits of adaptive clipping are added up without noise."""

    def at_server(self, total, noise, round):
        bits = total.pop(UNCLIPPED).double().reshape(1)
        total[CLIP_NORM] = bits.new_tensor(self.next_norm(round.bound, float(bits), round.reachable))

    return [(AdaptiveClip, "at_server", at_server)]


def noise_not_split():
    """Updates get the noise that updates and bits should share."""
    return [(AdaptiveClip, "update_multiplier", lambda self, noise, cohort: noise)]


def a_bit_worth_twice():
    """The bit is ±1, the noise that of ±½."""

    def side_report(self, update, round):
        return {UNCLIPPED: 1.0 if client_side.norm(update) <= round.bound else -1.0}

    return [(AdaptiveClip, "side_report", side_report), (AdaptiveClip, "side_values", {UNCLIPPED: 1.0})]


def true_total_of_sizes():
    """The server learns the true number of samples."""
    return [(Sizes, "total", lambda self, clients: float(self._true[clients].sum()))]


def true_sizes_as_weights():
    """The server weighs uploads by their true sizes."""
    return [(Sizes, "weights", lambda self, clients: self._true[clients].astype(np.float64))]


def broken_uploads_vote():
    """A broken upload sends a bit, too."""
    passed = client_side.pass_links

    def votes(chain, update, noise, round, look=None, *, broken):
        return passed(chain, update, noise, round, look, broken=False)

    return everywhere("pass_links", passed, votes)


def rounding_not_covered():
    """Noise at the server ignores that the rounding of a secure sum lengthens updates."""
    begin = RunChannel.in_round

    def in_round(self, number, asked, server):
        made = begin(self, number, asked, server)
        return replace(made, round=replace(made.round, lengthening=1.0))

    return [(RunChannel, "in_round", in_round)]


def clipped_a_little_too_long():
    """Clipping factors are too large, by less than the library's own probe allows."""
    return [(factors, "shrunk", lambda max_grad_norm, dtype: 1.0003 * max_grad_norm)]


def not_finite_passes():
    """A gradient that is not finite is not left out."""
    return [(factors.Clipping, "kept", lambda self, values: values)]


def noise_for_a_client_only():
    """Streams of noise know the client, but not the round."""
    return [(RoundContext, "noise", lambda self, use, client: self.source.stream(use, 0, client))]


def noise_for_a_round_only():
    """Streams of noise know the round, but not the client."""
    return [(RoundContext, "noise", lambda self, use, client: self.source.stream(use, self.number, 0))]


def the_same_noise_in_every_step():
    """Every gradient begins its client's stream anew."""
    add = keeper._add_noise_

    def again(total, streams, deviations):
        anew = []
        for one in streams:
            fresh = NoiseStream(one.fuzz_key)
            fresh.fuzz_labels = one.fuzz_labels
            anew.append(fresh)
        add(total, anew, deviations)

    return [(keeper, "_add_noise_", again)]


def private_divisor():
    """A private gradient of one client is divided by the number of rows in its batch."""
    add, divide, counts = ClientDoor._clipped_sum, keeper.divided_, []

    def clipped_sum(self, loss, batch, *rest):
        counts[:] = batch.counts
        return add(self, loss, batch, *rest)

    def divided_(total, divisors):
        return divide(total, [max(counts[0], 1)] if counts and len(divisors) == 1 else divisors)

    return [(ClientDoor, "_clipped_sum", clipped_sum), (keeper, "divided_", divided_)]


def one_release_less():
    """The ledger counts one release less than there were."""
    record = Ledger.record

    def less(self, release, clients, count=1):
        if not self._tallies:
            count -= 1
        record(self, release, clients, count)

    return [(Ledger, "record", less)]


def all_rows_are_drawn():
    """Poisson draws hold every row."""
    return [(NoiseStream, "poisson_sample", lambda self, n, rate: np.arange(n, dtype=np.int64))]


def one_draw_for_all_steps():
    """A client's Poisson batch is drawn once and used in every step."""

    def rows(self, rows, shuffle, noise):
        chosen = rows[torch.from_numpy(noise.poisson_sample(len(rows), self.rate))]
        for _ in range(self.steps):
            yield chosen

    return [(Poisson, "rows", rows)]


def public_coins():
    """The cohort that a claim needs secret is drawn from the experiment's seed."""

    def draw(self, available, round, seed, source, sizes):
        chosen = np.flatnonzero(numpy_stream(seed, "cohort", round).random(len(available)) < self.probability)
        return Selection(available[chosen], np.ones(len(chosen), dtype=np.int64))

    return [(PoissonCohort, "draw", draw)]


def charged_at_half_the_rate():
    """DP-SGD is charged as if half as many rows were drawn."""
    event = DPSGD.event
    return [(DPSGD, "event", lambda self, noise, rate: event(self, noise, rate / 2))]


def half_the_noise_on_updates():
    """Noise on updates is half as large as its event says."""

    def at_client(self, update, noise, round):
        if self.at == "client":
            noise.add_gaussian_(update, self.noise_multiplier * round.bound / 2)
        return update

    def at_server(self, total, noise, round):
        if self.at == "server":
            noise.stream.add_gaussian_(total["update"], self.noise_multiplier * round.bound / 2)

    return [(GaussianNoise, "at_client", at_client), (GaussianNoise, "at_server", at_server)]


def noise_by_the_update():
    """Noise is sized by the update, not by its bound."""

    def at_client(self, update, noise, round):
        if self.at == "client":
            noise.add_gaussian_(update, self.noise_multiplier * (1e-6 + client_side.norm(update)))
        return update

    return [(GaussianNoise, "at_client", at_client)]


def updates_not_clipped():
    """No link keeps updates to their bound."""
    within = client_side.within_bound
    return [
        (Clip, "at_client", lambda self, update, noise, round: update),
        *everywhere("within_bound", within, lambda update, bound: update),
    ]


def half_a_share():
    """Every client's share of noise has half the variance."""
    variance = DistributedNoise.share_variance
    return [(DistributedNoise, "share_variance", lambda self, terms: variance(self, terms) / 2)]


def half_correlated():
    """Correlated noise is sized for half the bound."""
    build = CorrelatedNoiseState.__init__

    def begin(self, *given, **named):
        build(self, *given, **named)
        self.deviation /= 2

    return [(CorrelatedNoiseState, "__init__", begin)]


def examples_as_clients():
    """One example's move of an update is charged once, though it may go through twice the bound."""
    made = Cover.gaussian.__func__

    def gaussian(cls, event, secret_rate=1.0):
        cover = made(cls, event, secret_rate)
        return replace(cover, sample=cover.client)

    return [(Cover, "gaussian", classmethod(gaussian))]


def failures_are_dropped():
    """A broken upload is missed where its absence should be hidden."""
    return [(ChannelSpec, "zero_fills_failures", property(lambda self: False))]


def weight_of_who_came():
    """The public divisor is the number of uploads that came."""
    aggregate = simulation.aggregate

    def counted(costs, sums, server, context):
        facts = replace(context.facts, weight=max(sums.weight, 1.0))
        return aggregate(costs, sums, server, replace(context, facts=facts))

    return [(simulation, "aggregate", counted)]


def bare_rows_in_the_upload():
    """The upload holds a little of the gradient before its noise."""
    train = loop.LoopEngine._train_one

    def leaks(self, space, client, phase, received, context):
        result = train(self, space, client, phase, received, context)
        if result.upload and "update" in result.upload:
            result.upload["update"].add_(1e-3 * len(self.task.clients[client]))
        return result

    return [(loop.LoopEngine, "_train_one", leaks)]


def quiet_when_empty():
    """An empty batch gets no noise."""
    add = keeper._add_noise_

    def noise(total, streams, deviations):
        if bool(total.any()):
            add(total, streams, deviations)

    return [(keeper, "_add_noise_", noise)]


def caveats_about_sizes():
    """The statement tells the size of a client."""
    told = simulation.caveats

    def caveats(plan, server):
        return (*told(plan, server), f"the clients hold {plan.task.clients.sizes.sum()} samples")

    return [(simulation, "caveats", caveats)]


def fixed_keys_unsaid():
    """Noise from a fixed key passes for noise from the operating system."""

    def from_key(cls, key):
        return cls(key.to_bytes(32, "big"), reproducible=False)

    return [(NoiseSource, "from_key", classmethod(from_key))]


def refused_by_the_data():
    """A run is refused if its data hold a certain number of rows."""
    prepare = simulation.prepare

    def picky(settings):
        if settings.task.clients.sizes.sum() % 2:
            raise pf_error("an odd number of samples")
        return prepare(settings)

    return [(simulation, "prepare", picky)]


def pf_error(text):
    from privfl.errors import ConfigError

    return ConfigError(text)


def rounding_of_gradients_not_covered():
    """Noise on a secure sum of gradients ignores its rounding, and half of its scale."""
    at_server = channel.RoundChannel.at_server

    def less(self, total, source, label="", reachable=None):
        weaker = self
        if self.dpsgd is not None and self.noise_at_server:
            dpsgd = replace(self.dpsgd, noise_multiplier=self.dpsgd.noise(0) / 2)
            weaker = replace(self, dpsgd=dpsgd)
        return at_server(weaker, total, source, label, reachable)

    return [(channel.RoundChannel, "at_server", less)]


def float64_for_all_clients():
    """One client's rows decide for the whole stack whether sums are formed in float64."""
    ask = factors.Clipping._wide

    def wide(self, sizes, clients):
        asked = ask(self, sizes, clients)
        return asked if isinstance(asked, bool) else bool(asked.any())

    return [(factors.Clipping, "_wide", wide)]
