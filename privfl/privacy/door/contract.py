"""The door: the one handle through which training sees a client's data.

With nothing on, a value passes and the door notes why the upload that follows is unprotected. With DP-SGD on,
``gradient`` clips, adds noise, divides by a public number and notes the event. What is refused, noised and noted is
decided behind the door (:mod:`privfl.privacy.door.keeper`); a step holds this side of it, from which no attribute leads
to the data: neither the door nor a batch has any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NoReturn, get_args

from torch import Tensor

from privfl.errors import ConfigError
from privfl.privacy.loss import Loss

Question = Literal["gradient", "total", "local_only_gradient", "data_free_gradient", "data_free_value", "size"]
"""What a step may ask of a door; each is one of its methods."""


class BehindTheDoor(ConfigError, AttributeError):
    """A step asked a batch or a door for something that it does not have."""


class Batch:
    """One batch, as a step gets it: the numbers of its step, and no data.

    All numbers are tensors, so that an algorithm may compute with them for one client and for a stacked cohort alike. A
    batch is good for the step that it is given to.

    Args:
        count: gives the number of rows, and notes that it was read.
        last: 1 if the batch belongs to the client's last pass over its data, else 0; [].
        uniform: numbers in [0, 1) from the client's own stream, as many as the algorithm draws; [u].
        normal: standard normal numbers, likewise; [n].
    """

    __slots__ = ("_count", "last", "normal", "uniform")

    def __init__(self, count: Callable[[], Tensor], last: Tensor, uniform: Tensor, normal: Tensor) -> None:
        self._count, self.last, self.uniform, self.normal = count, last, uniform, normal

    @property
    def count(self) -> Tensor:
        """Number of rows [], private under DP-SGD as the client's size is: reading it is noted as unprotected."""
        return self._count()

    def __getattr__(self, name: str) -> NoReturn:
        raise BehindTheDoor(
            f"a step's batch has no '{name}', because data stays behind the door; take client.gradient(…) or "
            "client.total(…) of it"
        )


class Door:
    """What an algorithm's step may do with the data of the client in front of it.

    ``loss`` is the task's own; ``loss_kwargs`` holds tensors of ``local`` that a loss or function takes by name besides
    the network, the inputs and the targets.

    Args:
        ask: passes a question and its arguments on to whoever keeps the data.
        loss: the task's own loss.
    """

    __slots__ = ("_ask", "loss")

    def __init__(self, ask: Callable[..., Tensor], loss: Loss) -> None:
        self._ask, self.loss = ask, loss

    def __getattr__(self, name: str) -> NoReturn:
        raise BehindTheDoor(
            f"the door that a step is handed has no '{name}', because data stays behind it; ask for one of "
            f"{', '.join(get_args(Question))}"
        )

    def gradient(
        self, loss: Loss, parameters: Tensor, batch: Batch, loss_kwargs: dict[str, Tensor] | None = None
    ) -> Tensor:
        """Gradient [size] of the mean (or, by the plan's divisor, scaled sum) of ``loss`` over ``batch``.

        The result may be changed in place, and may be overwritten by the next gradient. Without DP-SGD an empty batch
        gives zero; with DP-SGD the batch must come from a Poisson plan with a divisor, and an empty one gives pure
        noise.

        Raises:
            ConfigError: the batch is that of another step; or DP-SGD is on, but the loss couples samples, the batch
                does not come from a Poisson plan with a public divisor, or it has given something before.
        """
        return self._ask("gradient", loss, parameters, batch, loss_kwargs)

    def total(
        self,
        statistic: Loss,
        parameters: Tensor,
        batch: Batch,
        loss_kwargs: dict[str, Tensor] | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Sum over ``batch`` of ``statistic(network, inputs, targets, **given) -> [B, ...]``; no gradient is taken.

        For losses, label counts, prototypes. The network is in evaluation mode. If the run has a noisy total
        (:class:`privfl.privacy.door.noisy_total.NoisyTotal`) for ``name``, one of the algorithm's ``statistics``, the
        sum leaves clipped and with noise; otherwise it is noted as unprotected.

        Raises:
            ConfigError: the batch is that of another step; or there is a noisy total for ``name``, but the statistic
                couples samples, or the batch is a Poisson sample that has given something before.
        """
        return self._ask("total", statistic, parameters, batch, loss_kwargs, name)

    def local_only_gradient(
        self,
        loss: Loss,
        parameters: Tensor,
        batch: Batch,
        loss_kwargs: dict[str, Tensor] | None = None,
        wrt: str = "parameters",
    ) -> Tensor:
        """Gradient of the mean of ``loss`` over ``batch`` that stays with the client, whatever it is used for.

        For personal models and local discriminators, of algorithms that declare ``local_only``. It is not protected and
        influences no upload: where a mechanism at the door claims anything, an algorithm from outside privfl trains a
        client twice, and what it sends comes from the training in which all these gradients were zero. ``wrt`` may name
        a tensor of ``loss_kwargs`` instead.

        Raises:
            ConfigError: the batch is that of another step, or the algorithm does not declare ``local_only``.
        """
        return self._ask("local_only_gradient", loss, parameters, batch, loss_kwargs, wrt)

    def data_free_gradient(
        self,
        function: Callable[..., Tensor],
        parameters: Tensor,
        loss_kwargs: dict[str, Tensor] | None = None,
        wrt: str = "parameters",
    ) -> Tensor:
        """Gradient of the sum of ``function(network, **given)``, in evaluation mode; no data passes.

        For what depends on data only through the parameters: synthetic inputs, regularisers of the network's outputs.
        ``wrt`` may name a tensor of ``loss_kwargs``, such as the synthetic inputs.
        """
        return self._ask("data_free_gradient", function, parameters, loss_kwargs, wrt)

    def data_free_value(
        self, function: Callable[..., Tensor], parameters: Tensor, loss_kwargs: dict[str, Tensor] | None = None
    ) -> Tensor:
        """``function(network, **given)`` in evaluation mode, without a gradient; no data passes."""
        return self._ask("data_free_value", function, parameters, loss_kwargs)

    def size(self) -> Tensor:
        """The client's exact number of samples [], noted as unprotected."""
        return self._ask("size")
