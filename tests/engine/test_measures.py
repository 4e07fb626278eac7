"""What is measured of a whole stack at once is what every upload says of itself, and decides the same."""

import math

import pytest
import torch

from privfl.engine.aggregation import CohortSums, PlainAggregator
from privfl.engine.measures import NOTHING, Measures, measures_of, measures_of_stack
from privfl.engine.workspace import Trained, send
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.channel.field import Field
from privfl.privacy.door.log import DoorLog
from privfl.privacy.noise.source import NoiseStream
from tests.device.stand_in import CUDA, stand_in_cuda
from tests.lying_tensor import Lying

SIZE = 50
FIELDS = (Field("update", weighted=True), Field("size", shape=()), Field("table", shape=(2, 3)))


def uploads():
    numbers = torch.Generator().manual_seed(0)
    update = torch.randn(5, SIZE, generator=numbers) * 10.0 ** torch.arange(-3, 2)[:, None]
    update[1, 7], update[2, 3], update[3] = math.nan, math.inf, 0.0
    return {"update": update, "size": torch.arange(5.0), "table": torch.randn(5, 2, 3, generator=numbers).double()}


def same(one, other):
    return [repr(number) for number in (one.lowest, one.highest)] == [
        repr(number) for number in (other.lowest, other.highest)
    ]


def test_measures_of_a_stack_are_those_of_each_upload():
    given = uploads()
    for client, known in enumerate(measures_of_stack(given, 5)):
        assert set(known) == {"update", "table"}  # a number alone is quickly asked for
        for name, found in known.items():
            assert same(found, measures_of(given[name][client]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 7, 33, 70_001])
def test_measures_say_what_is_not_finite_wherever_it_stands_and_what_is_largest(size, dtype):
    value = torch.randn(size, generator=torch.Generator().manual_seed(size), dtype=dtype)
    found = measures_of(value)
    assert (found.lowest, found.highest, found.largest) == (value.min(), value.max(), value.abs().max())
    assert found.finite
    for wrong in (math.nan, math.inf, -math.inf):
        for place in {0, size // 2, size - 1}:
            broken = value.clone()
            broken[place] = wrong
            assert not measures_of(broken).finite
            assert not measures_of(broken).largest < math.inf
    assert measures_of(value[:0]) == Measures(0.0, 0.0)


def test_a_tensor_of_a_kind_of_its_own_is_not_believed():
    given = uploads()
    known = measures_of_stack({**given, "update": given["update"].as_subclass(Lying)}, 5)
    assert [set(one) for one in known] == [{"table"}] * 5


def test_the_host_waits_once_for_all_of_them():
    with stand_in_cuda() as counts:
        given = {name: value.to(CUDA) for name, value in uploads().items()}
        for ask in (lambda: measures_of_stack(given, 5), lambda: measures_of(given["update"])):
            counts.reset()
            ask()
            assert counts.waits.total() == 1


def test_clients_who_send_nothing_or_fill_a_stack_up_have_none():
    assert measures_of_stack({}, 3) == [{}, {}, {}]
    assert len(measures_of_stack(uploads(), 2)) == 2


def test_what_is_known_decides_what_is_dropped_and_how_the_rest_is_added_up_as_the_upload_itself():
    channel = RoundChannel.bare(FIELDS)
    given, found = uploads(), []
    for known in (measures_of_stack(given, 5), [NOTHING] * 5):
        aggregator, dropped = PlainAggregator(channel.fields), []
        for client in range(5):
            upload = {name: value[client] for name, value in given.items()}
            trained = Trained(upload, {}, DoorLog(), known[client])
            sent = send(channel, client, trained, NoiseStream(bytes(32)), torch.zeros(SIZE))
            dropped.append(sent.dropped)
            names = set() if sent.dropped else {"update", "size", "table"}
            assert set(sent.known) == names
            assert all(sent.known[name] == measures_of(upload[name]) for name in names)
            if sent.upload is not None:
                assert aggregator.add(client, sent.upload, 0.3, sent.known) == ""
        sums = CohortSums()
        aggregator.close(sums)
        found.append((dropped, sums.total))
    (first, sums), (second, others) = found
    assert first == second == ["", "sent a non-finite 'update'", "sent a non-finite 'update'", "", ""]
    assert all(torch.equal(sums[name], others[name]) for name in sums)


def test_what_a_mechanism_may_have_written_into_is_measured_anew(monkeypatch):
    channel = RoundChannel.bare(FIELDS[:1])

    def doubled(self, upload, noise, *, like, broken, look):
        upload["update"].mul_(2.0**30)
        return {**upload}

    upload = {"update": torch.ones(SIZE)}
    known = {"update": measures_of(upload["update"])}
    monkeypatch.setattr(RoundChannel, "at_client", doubled)
    sent = send(channel, 0, Trained(upload, {}, DoorLog(), known), NoiseStream(bytes(32)), torch.zeros(SIZE))
    assert sent.known == {}
