"""FedCVAE: FedAvg over a conditional variational autoencoder, the baseline of FedEvg's thesis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from privfl.algorithms.base import Tensors
from privfl.algorithms.generative.generative_fedavg import (
    NOISE_ROWS,
    GenerativeFedAvg,
    adam_step,
    noise_of,
    with_moments,
)
from privfl.models.conditional import ConditionalAutoencoder
from privfl.models.conditional_convolutions import ConvolutionalAutoencoder
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door
from privfl.validation import check_number

Reconstruction = Literal["bce", "mse"]
"""How far a decoded input is from the real one; see :func:`reconstruction_terms`."""


@dataclass(frozen=True)
class FedCVAE(GenerativeFedAvg):
    """FedAvg over a conditional VAE (Sohn, Lee and Yan, NeurIPS 2015), as S. Hahn's thesis compares it with FedEvg.

    Every client trains encoder q(z | x, y) and decoder p(x | z, y) on ``reconstruction + β·KL(q ‖ N(0, I))`` with one
    z a sample; the server averages both with a_k = n_k / Σ n and draws its synthetic set from the decoder with
    z ~ N(0, I) and equally many of every class. Not the one-shot FedCVAE-Ens and -KD of Heinbaugh et al. (ICLR 2023),
    where clients send decoder and label frequencies once.

    ``training`` is the client's Adam (β₁ = 0.5 and β₂ = 0.999, as in FedEvg), which begins anew in every round; the
    thesis's learning rate is 1e-3. Momentum has no meaning.

    Differs from the thesis's code: networks are perceptrons of one hidden layer unless ``architecture`` is
    ``"convolutional"`` (there: four convolutions with batch normalisation, which is GroupNorm here), the standard
    deviation is exp(½·log-variance), and the reconstruction is summed over the pixels (there: averaged, against a KL
    that is summed, so that the KL outweighs it by the number of pixels).

    Privacy: the gradient is a sum over samples without a mechanism, so nothing is claimed unless ``privacy.update``
    hides clients; DP-SGD is refused. A decoder can memorise what it decodes.

    Args:
        beta: β ≥ 0, weight of the KL; the others are
            :class:`privfl.algorithms.generative.generative_fedavg.GenerativeFedAvg`'s.
        reconstruction: ``"bce"`` or ``"mse"``: :func:`reconstruction_terms`.
    """

    name: ClassVar[str] = "fedcvae"
    beta: float = 1.0
    reconstruction: Reconstruction = "bce"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("fedcvae's beta", self.beta, 0)

    def networks(self) -> ConditionalAutoencoder:
        kind = ConvolutionalAutoencoder if self.architecture == "convolutional" else ConditionalAutoencoder
        return kind(self.context.input_shape, self.context.classes, self.latent, self.hidden)

    def random_numbers(self) -> tuple[int, int]:
        return 0, NOISE_ROWS * self.latent

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        return {"parameters": received["parameters"], **with_moments("generator", received["generator"])}

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        given = {"generator": local["generator"], "noise": batch.normal.view(NOISE_ROWS, self.latent)}
        total = client.total(self.gradients, local["parameters"], batch, given)
        adam_step(local, "generator", total / batch.count.to(total.dtype), training)

    def gradients(
        self, network: nn.Module, inputs: Tensor, targets: Tensor, generator: Tensor, noise: Tensor
    ) -> Tensor:
        """Gradients [B, size] of every sample's loss; the task's own ``network`` has no part in them."""
        rows = self.pixels(inputs).to(noise), self.kinds(targets, noise.dtype), noise_of(noise, len(inputs))
        found: Tensor = vmap(grad(self.loss), (None, 0, 0, 0))(generator, *rows)
        return found

    def loss(self, generator: Tensor, pixels: Tensor, kinds: Tensor, noise: Tensor) -> Tensor:
        """``reconstruction + β·KL`` [...] of ``pixels`` [..., D] in [0, 1], one-hot ``kinds`` and ``noise``, with
        z = μ + σ·noise."""
        networks = self.networks()
        encoder, decoder = networks.parts(generator)
        mean, log_variance = networks.encode(encoder, pixels, kinds)
        logits = networks.decode(decoder, mean + (0.5 * log_variance).exp() * noise, kinds)
        return reconstruction_terms(logits, pixels, self.reconstruction) + self.beta * divergence(mean, log_variance)


def reconstruction_terms(logits: Tensor, pixels: Tensor, kind: Reconstruction) -> Tensor:
    """The error [...] of the decoded ``sigmoid(logits)`` [..., D] against ``pixels`` [..., D], summed over D.

    ``"bce"``: −Σ x·log x̂ + (1 − x)·log(1 − x̂), computed from logits. ``"mse"``: Σ (x − x̂)², which is the
    negative log-likelihood of a Gaussian with variance ½, up to a constant.
    """
    if kind == "bce":
        return F.binary_cross_entropy_with_logits(logits, pixels, reduction="none").sum(-1)
    return (logits.sigmoid() - pixels).square().sum(-1)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(μ, σ²) ‖ N(0, I)) = −½ Σ (1 + ln σ² − μ² − σ²) [...], of ``mean`` and ``log_variance`` [..., latent]."""
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)
