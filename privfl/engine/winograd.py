"""Winograd's minimal filtering F(4×4, 3×3): what stands between images and products of matrices, and back again.

An output tile of 4 × 4 numbers takes 36 multiplications for every pair of channels where the convolution itself takes
144 (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016): a patch d of 6 × 6 numbers becomes
Bᵀ d B, a filter g becomes G g Gᵀ, their products, added up over the channels, are 36 matrix products over all tiles,
and Aᵀ m A is the tile. Max pooling of 2 × 2 takes four numbers of each tile, so tiles need not be written down, and on
the way back only those have a gradient. Sums are the same but for rounding.

Polynomials are taken at 0, ±√½, ±√2 and ∞. Of 144 tiles of 32 to 64 channels the convolution is then off by at most
6e-7 of its largest number, the gradients at images and filters by 1.2e-6 and 8e-7; at 0, ±1, ±2 and ∞, as in that
paper, by 2.4e-6 to 2.7e-6, and with tiles of 2 × 2, which take 4 multiplications for a number where these take 2.25, by
2.4e-7 to 3.9e-7.

Each transform is a loop that Numba compiles and, before and without it, tensor operations that give the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privfl.compiling import once_it_pays
from privfl.engine import winograd_loops as loops
from privfl.engine.winograd_loops import ROOT

POINTS = 36
"""Numbers of a transformed patch."""
SAVED = {"patches": 2.2e-9, "largest": 2.3e-9, "spread": 2.9e-9, "images": 2.4e-9, "filters": 1.8e-9}
"""Seconds that the compiled loops save for each number of transformed patches (an Intel Xeon with AVX-512)."""
FILTERS = torch.tensor(
    [
        [1, 0, 0],
        [-2 / 3, -2 * ROOT / 3, -1 / 3],
        [-2 / 3, 2 * ROOT / 3, -1 / 3],
        [1 / 6, ROOT / 3, 1 / 3],
        [1 / 6, -ROOT / 3, 1 / 3],
        [0, 0, 1],
    ]
)
"""G."""


def pooled_size(height: int, width: int) -> tuple[int, int]:
    """Numbers down and across what is left of images of this size; the lower and right edge may leave a line out."""
    return (height - 2) // 2, (width - 2) // 2


def tile_counts(height: int, width: int) -> tuple[int, int]:
    """Tiles down and across images of this size, of which the last ones may reach beyond what is pooled."""
    down, across = pooled_size(height, width)
    return -(-down // 2), -(-across // 2)


def sides(height: int, width: int) -> tuple[int, int]:
    """Height and width that images of this size must be filled up to, so that all of their tiles lie inside."""
    down, across = tile_counts(height, width)
    return max(height, 4 * down + 2), max(width, 4 * across + 2)


def filter_transform() -> Tensor:
    """G ⊗ G [36, 9]: a filter of 3 × 3 numbers, row by row, to its 36 points."""
    return torch.kron(FILTERS, FILTERS).contiguous()


def patches(images: Tensor, found: Tensor) -> None:
    """Bᵀ d B of every patch: ``images`` [B, H, W, C] into ``found`` [36, tiles, C], both without gaps."""
    loop = once_it_pays(loops.patches, SAVED["patches"] * found.numel())
    if loop is not None:
        loop(images.numpy(), found.numpy())
        return
    rows, height, width, channels = images.shape
    down, across = (height - 2) // 4, (width - 2) // 4
    places = found.view(6, 6, rows, down, across, channels)
    lines = [images[:, i : i + 4 * down - 3 : 4] for i in range(6)]
    for place, sums in zip(places, _widened(*lines), strict=True):
        columns = [sums[:, :, j : j + 4 * across - 3 : 4] for j in range(6)]
        for point, one in zip(place, _widened(*columns), strict=True):
            point.copy_(one)


def _widened(d0: Tensor, d1: Tensor, d2: Tensor, d3: Tensor, d4: Tensor, d5: Tensor) -> tuple[Tensor, ...]:
    """Bᵀ times six rows."""
    even, odd = d4 - 2 * d2, ROOT * (d3 - 2 * d1)
    other, another = d4 - 0.5 * d2, ROOT * (2 * d3 - d1)
    return d0 - 2.5 * d2 + d4, even + odd, even - odd, other + another, other - another, d1 - 2.5 * d3 + d5


def largest(products: Tensor, bias: Tensor, pooled: Tensor, places: Tensor) -> None:
    """The largest of every four numbers of the tiles Aᵀ m A, and which of them it is, counted row by row.

    Args:
        products: m, [36, tiles, C].
        bias: [C], added afterwards.
        pooled: [B, down, across, C], overwritten; not a number where one of the four is not.
        places: uint8 [B, down, across, C], overwritten; the first place if several have the largest.
    """
    loop = once_it_pays(loops.largest, SAVED["largest"] * products.numel())
    if loop is not None:
        loop(products.numpy(), bias.numpy(), pooled.numpy(), places.numpy())
        return
    rows, down, across, channels = pooled.shape
    m = products.view(6, 6, rows, -(-down // 2), -(-across // 2), channels)
    tile = [_narrowed(*line) for line in _narrowed(*m)]
    places.zero_()
    for above in range(2):
        for left in range(2):
            into, place = pooled[:, above::2, left::2], places[:, above::2, left::2]
            for count in range(4):
                one = tile[2 * above + count // 2][2 * left + count % 2][:, : into.shape[1], : into.shape[2]]
                if count == 0:
                    into.copy_(one)
                    continue
                larger = (one > into).logical_or_(one != one)
                place.copy_(torch.maximum(place, larger.view(torch.uint8) * count))
                into.copy_(torch.maximum(into, one))
    pooled.add_(bias)


def _narrowed(m0: Tensor, m1: Tensor, m2: Tensor, m3: Tensor, m4: Tensor, m5: Tensor) -> tuple[Tensor, ...]:
    """Aᵀ times six rows."""
    near, far, even, odd = m1 + m2, m3 + m4, m1 - m2, m3 - m4
    return m0 + near + far, ROOT * (even + 2 * odd), 0.5 * near + 2 * far, ROOT * (0.5 * even + 4 * odd) + m5


def spread(back: Tensor, places: Tensor, found: Tensor) -> None:
    """A y Aᵀ of every tile y, ``back`` [B, down, across, C] at ``places`` and else 0, into ``found`` [36, tiles, C]."""
    loop = once_it_pays(loops.spread, SAVED["spread"] * found.numel())
    if loop is not None:
        loop(back.numpy(), places.numpy(), found.numpy())
        return
    rows, down, across, channels = back.shape
    height, width = -(-down // 2), -(-across // 2)
    y = back.new_zeros(4, 4, rows, height, width, channels)
    for above in range(2):
        for left in range(2):
            values, chosen = back[:, above::2, left::2], places[:, above::2, left::2]
            for place in range(4):
                own = y[2 * above + place // 2, 2 * left + place % 2]
                own[:, : values.shape[1], : values.shape[2]] = torch.where(chosen == place, values, 0)
    into = found.view(6, 6, rows, height, width, channels)
    for place, line in zip(into, _spread_out(*y), strict=True):
        for point, one in zip(place, _spread_out(*line), strict=True):
            point.copy_(one)


def _spread_out(y0: Tensor, y1: Tensor, y2: Tensor, y3: Tensor) -> tuple[Tensor, ...]:
    """A times four rows."""
    even, odd = y0 + 0.5 * y2, ROOT * (y1 + 0.5 * y3)
    other, another = y0 + 2 * y2, ROOT * (2 * y1 + 4 * y3)
    return y0, even + odd, even - odd, other + another, other - another, y3


def images(patches: Tensor, found: Tensor) -> None:
    """Σ of B p Bᵀ of every patch, where it lies: ``patches`` [36, tiles, C] into ``found`` [B, H, W, C]."""
    loop = once_it_pays(loops.images, SAVED["images"] * patches.numel())
    if loop is not None:
        loop(patches.numpy(), found.numpy())
        return
    rows, height, width, channels = found.shape
    down, across = (height - 2) // 4, (width - 2) // 4
    p = patches.view(6, 6, rows, down, across, channels)
    lines = found.new_zeros(6, rows, down, width, channels)
    for line, own in zip(lines, p, strict=True):
        _lay(own, line, 2, across)
    found.zero_()
    _lay(lines, found, 1, down)


def _lay(patches: Tensor, found: Tensor, dim: int, tiles: int) -> None:
    """B times six rows of each tile, added up where they lie in the dimension ``dim`` of ``found``, four apart."""
    p0, p1, p2, p3, p4, p5 = patches
    near, far, even, odd = p1 + p2, p3 + p4, p1 - p2, p3 - p4
    made = (
        p0,
        p5 - ROOT * (2 * even + odd),
        -(2.5 * p0) - (2 * near + 0.5 * far),
        ROOT * (even + 2 * odd) - 2.5 * p5,
        p0 + near + far,
        p5,
    )
    for place, one in enumerate(made):
        index = torch.arange(place, place + 4 * tiles - 3, 4)
        found.index_add_(dim, index, one)


def filters(points: Tensor, found: Tensor) -> None:
    """Gᵀ p G of every filter's points: ``points`` [36, filters] into ``found`` [filters, 9], both without gaps."""
    loop = once_it_pays(loops.filters, SAVED["filters"] * points.numel())
    if loop is not None:
        loop(points.numpy(), found.numpy())
        return
    for line, own in enumerate(_gathered(*points.view(6, 6, -1))):
        for place, one in enumerate(_gathered(*own)):
            found[:, 3 * line + place] = one


def _gathered(p0: Tensor, p1: Tensor, p2: Tensor, p3: Tensor, p4: Tensor, p5: Tensor) -> tuple[Tensor, ...]:
    """Gᵀ times six rows."""
    near, far = p1 + p2, p3 + p4
    first = p0 - 2 / 3 * near + 1 / 6 * far
    return first, ROOT / 3 * (2 * (p2 - p1) + (p3 - p4)), 1 / 3 * (far - near) + p5
