"""FedCGAN: FedAvg over generator and discriminator of a conditional GAN, the baseline of FedEvg's thesis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
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
from privfl.models.conditional import ConditionalAdversaries
from privfl.models.conditional_convolutions import ConvolutionalAdversaries
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.contract import Batch, Door


@dataclass(frozen=True)
class FedCGAN(GenerativeFedAvg):
    """FedGAN (Rasouli, Sun and Rajagopal, 2020, arXiv 2006.07228) with networks that know the class.

    For every batch a client takes one step on ``L_D = softplus(−D(x|y)) + softplus(D(G(z,y)|y))`` and then, with new z,
    one on the non-saturating ``L_G = softplus(−D(G(z,y)|y))``, each averaged over the batch; the y of the generated
    inputs are those of the batch, so that they follow the client's own label frequencies. The server averages both
    networks with a_k = n_k / Σ n and draws its synthetic set from the generator with z ~ N(0, I) and equally many of
    every class.

    ``training`` is the client's Adam, one for each network (β₁ = 0.5, β₂ = 0.999), which begins anew in every round;
    2e-4 is the usual learning rate. Momentum has no meaning.

    With ``architecture="convolutional"`` it is the thesis's AC-GAN, whose discriminator gives the class instead of
    reading it: both losses gain the cross-entropy of the class, L_D on real and made inputs alike.

    Differs from the paper and from the thesis's code: networks are perceptrons of one hidden layer whose output is a
    sigmoid unless ``architecture`` says otherwise (the thesis's code: transposed convolutions with batch
    normalisation, which is GroupNorm here, and a class head that is trained on generated images with labels that have
    nothing to do with them); both networks have one learning rate (the paper: one each, on a schedule).

    Privacy: gradients of both networks are sums over samples without a mechanism, so nothing is claimed unless
    ``privacy.update`` hides clients; DP-SGD is refused. Labels pass through the generator's step too, so noise on the
    discriminator's gradients alone would not do. A generator can memorise what it was trained on.

    Args:
        latent: width of z; the others are those of
            :class:`privfl.algorithms.generative.generative_fedavg.GenerativeFedAvg`.
    """

    name: ClassVar[str] = "fedcgan"
    latent: int = 100

    def networks(self) -> ConditionalAdversaries:
        kind = ConvolutionalAdversaries if self.architecture == "convolutional" else ConditionalAdversaries
        return kind(self.context.input_shape, self.context.classes, self.latent, self.hidden)

    def random_numbers(self) -> tuple[int, int]:
        return 0, 2 * NOISE_ROWS * self.latent

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        generator, discriminator = self.networks().parts(received["generator"])
        return {
            "parameters": received["parameters"],
            **with_moments("maker", generator),
            **with_moments("judge", discriminator),
        }

    def step(self, local: Tensors, received: Tensors, batch: Batch, client: Door, training: LocalTraining) -> None:
        for name, noise in zip(("judge", "maker"), batch.normal.view(2, NOISE_ROWS, self.latent), strict=True):
            given = {"maker": local["maker"], "judge": local["judge"], "noise": noise}
            statistic = self.judge_gradients if name == "judge" else self.maker_gradients
            total = client.total(statistic, local["parameters"], batch, given)
            adam_step(local, name, total / batch.count.to(total.dtype), training)

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        return {"update": torch.cat([local["maker"], local["judge"]]) - received["generator"]}

    def judge_gradients(
        self, network: nn.Module, inputs: Tensor, targets: Tensor, maker: Tensor, judge: Tensor, noise: Tensor
    ) -> Tensor:
        """Gradients [B, discriminator's size] of every sample's L_D."""
        rows = self.pixels(inputs).to(noise), self.kinds(targets, noise.dtype), noise_of(noise, len(inputs))
        found: Tensor = vmap(grad(self.judge_loss), (None, None, 0, 0, 0))(judge, maker, *rows)
        return found

    def maker_gradients(
        self, network: nn.Module, inputs: Tensor, targets: Tensor, maker: Tensor, judge: Tensor, noise: Tensor
    ) -> Tensor:
        """Gradients [B, generator's size] of every sample's L_G."""
        rows = self.kinds(targets, noise.dtype), noise_of(noise, len(inputs))
        found: Tensor = vmap(grad(self.maker_loss), (None, None, 0, 0))(maker, judge, *rows)
        return found

    def judge_loss(self, judge: Tensor, maker: Tensor, pixels: Tensor, kinds: Tensor, noise: Tensor) -> Tensor:
        """L_D [...] of ``pixels`` [..., D] in [0, 1], one-hot ``kinds`` [..., classes] and ``noise`` [..., latent]."""
        networks = self.networks()
        made = networks.make(maker, noise, kinds).sigmoid()
        return networks.error(judge, pixels, kinds, True) + networks.error(judge, made, kinds, False)

    def maker_loss(self, maker: Tensor, judge: Tensor, kinds: Tensor, noise: Tensor) -> Tensor:
        """L_G [...] of one-hot ``kinds`` [..., classes] and ``noise`` [..., latent]."""
        networks = self.networks()
        return networks.error(judge, networks.make(maker, noise, kinds).sigmoid(), kinds, True)
