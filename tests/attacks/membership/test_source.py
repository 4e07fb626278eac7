"""Source inference: owners are named, and of records that nobody holds no more than chance."""

import pytest
import torch

from attacks.auxiliary import Auxiliary
from attacks.membership.source import NOBODYS, SourceInference, same_classes
from privfl.errors import ConfigError
from tests.attacks.membership.worlds import part, task_of, watch

CLIENTS = [part(40 * k, 40 * (k + 1)) for k in range(5)]
OWNERS = torch.arange(5).repeat_interleave(40)


@pytest.fixture(scope="module")
def seen():
    return watch(task_of(CLIENTS), rounds=3, epochs=10, learning_rate=0.1)


def test_owners_are_named_and_public_records_have_none(seen):
    """With 200 records a null of one fifth exceeds 0.4 in less than 1 of 10⁹ runs, and the seed is fixed."""
    result = SourceInference().run(seen, Auxiliary(part(600, 1000), part(0, 200), {"owners": OWNERS}))
    assert result.metrics["accuracy"].low > 0.5
    assert result.nulls["chance"]["accuracy"].value == 0.2
    assert result.nulls[NOBODYS]["accuracy"].value < 0.4
    assert result.advantage["accuracy"].low > 0


def test_public_records_take_the_classes_of_those_asked_about():
    public, wanted = part(600, 900), part(0, 30)
    assert torch.equal(same_classes(public, wanted.targets).targets, wanted.targets)
    few = public[(public.targets != 3).nonzero().flatten()]
    with pytest.raises(ConfigError, match="class 3 has no public record"):
        same_classes(few, torch.tensor([3]))


def test_what_it_lacks_is_said(seen):
    with pytest.raises(ConfigError, match="there are 3"):
        SourceInference().guess(seen, Auxiliary(part(600, 603), CLIENTS[0]))
    with pytest.raises(ConfigError, match="3 owners of 40"):
        SourceInference().run(seen, Auxiliary(part(600, 900), CLIENTS[0], {"owners": OWNERS[:3]}))
