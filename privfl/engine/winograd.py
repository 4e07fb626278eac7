"""Winograd's minimal filtering F(2×2, 3×3): what stands between images and products of matrices, and back again.

An output tile of 2 × 2 numbers takes 16 multiplications for every pair of channels where the convolution itself takes
36 (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016): a patch d of 4 × 4 numbers becomes
Bᵀ d B, a filter g becomes G g Gᵀ, their products, added up over the channels, are 16 matrix products over all tiles,
and Aᵀ m A is the tile. Max pooling of 2 × 2 takes one number of each tile, so tiles need not be written down, and on
the way back only that number has a gradient. Sums are the same but for rounding.

Each transform is a loop that Numba compiles and, before and without it, tensor operations that give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.compiling import once_it_pays

POINTS = 16
"""Numbers of a transformed patch."""
SAVED = {"patches": 1e-10, "largest": 2.6e-9, "spread": 8e-10, "images": 5e-10, "filters": 8e-10}
"""Seconds that the compiled loops save for each number of transformed patches (AMD EPYC)."""
FILTERS = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
"""G."""
Numbers = NDArray[Any]


def tile_counts(height: int, width: int) -> tuple[int, int]:
    """Tiles down and across images of this size; what pooling leaves out at the lower and right edge has none."""
    return (height - 2) // 2, (width - 2) // 2


def filter_transform() -> Tensor:
    """G ⊗ G [16, 9]: a filter of 3 × 3 numbers, row by row, to its 16 points."""
    return torch.kron(FILTERS, FILTERS).contiguous()


def patches(images: Tensor, found: Tensor) -> None:
    """Bᵀ d B of every patch: ``images`` [B, H, W, C] into ``found`` [16, tiles, C], both without gaps."""
    loop = once_it_pays(_patches, SAVED["patches"] * found.numel())
    if loop is not None:
        loop(images.numpy(), found.numpy())
        return
    rows, height, width, channels = images.shape
    down, across = tile_counts(height, width)
    places = found.view(4, 4, rows, down, across, channels)
    one, two, three, four = (images[:, i : i + 2 * down : 2] for i in range(4))
    for place, sums in zip(places, (one - three, two + three, three - two, two - four), strict=True):
        first, second, third, fourth = (sums[:, :, j : j + 2 * across : 2] for j in range(4))
        torch.sub(first, third, out=place[0])
        torch.add(second, third, out=place[1])
        torch.sub(third, second, out=place[2])
        torch.sub(second, fourth, out=place[3])


def _patches(images: Numbers, found: Numbers) -> None:
    rows, height, width, channels = images.shape
    down, across = (height - 2) // 2, (width - 2) // 2
    sums = np.empty((4, width * channels), images.dtype)
    for tile_row in range(rows * down):
        image, above = tile_row // down, 2 * (tile_row % down)
        one, two = images[image, above].reshape(-1), images[image, above + 1].reshape(-1)
        three, four = images[image, above + 2].reshape(-1), images[image, above + 3].reshape(-1)
        for i in range(width * channels):
            sums[0, i] = one[i] - three[i]
        for i in range(width * channels):
            sums[1, i] = two[i] + three[i]
        for i in range(width * channels):
            sums[2, i] = three[i] - two[i]
        for i in range(width * channels):
            sums[3, i] = two[i] - four[i]
        for row in range(4):
            line = sums[row].reshape(width, channels)
            for tile in range(across):
                for i in range(channels):
                    found[4 * row, tile_row * across + tile, i] = line[2 * tile, i] - line[2 * tile + 2, i]
            for tile in range(across):
                for i in range(channels):
                    found[4 * row + 1, tile_row * across + tile, i] = line[2 * tile + 1, i] + line[2 * tile + 2, i]
            for tile in range(across):
                for i in range(channels):
                    found[4 * row + 2, tile_row * across + tile, i] = line[2 * tile + 2, i] - line[2 * tile + 1, i]
            for tile in range(across):
                for i in range(channels):
                    found[4 * row + 3, tile_row * across + tile, i] = line[2 * tile + 1, i] - line[2 * tile + 3, i]


def largest(products: Tensor, bias: Tensor, pooled: Tensor, places: Tensor) -> None:
    """The largest number of every tile Aᵀ m A, and which of its four it is, counted row by row.

    Args:
        products: m, [16, tiles, C].
        bias: [C], added afterwards.
        pooled: [tiles, C], overwritten; not a number where one of the four is not.
        places: uint8 [tiles, C], overwritten; the first place if several have the largest.
    """
    loop = once_it_pays(_largest, SAVED["largest"] * products.numel())
    if loop is not None:
        loop(products.numpy(), bias.numpy(), pooled.numpy(), places.numpy())
        return
    m = products.view(4, 4, *products.shape[1:])
    places.zero_()
    for above, line in enumerate((m[0] + m[1] + m[2], m[1] - m[2] - m[3])):
        for left, one in enumerate((line[0] + line[1] + line[2], line[1] - line[2] - line[3])):
            if above == left == 0:
                pooled.copy_(one)
                continue
            larger = (one > pooled).logical_or_(one != one)
            torch.maximum(places, larger.view(torch.uint8) * (2 * above + left), out=places)
            torch.maximum(pooled, one, out=pooled)
    pooled.add_(bias)


def _largest(products: Numbers, bias: Numbers, pooled: Numbers, places: Numbers) -> None:
    for tile in range(products.shape[1]):
        for i in range(products.shape[2]):
            m4, m5, m6, m7 = products[4, tile, i], products[5, tile, i], products[6, tile, i], products[7, tile, i]
            m8, m9, m10, m11 = products[8, tile, i], products[9, tile, i], products[10, tile, i], products[11, tile, i]
            above0, above1 = products[0, tile, i] + m4 + m8, products[1, tile, i] + m5 + m9
            above2, above3 = products[2, tile, i] + m6 + m10, products[3, tile, i] + m7 + m11
            below0, below1 = m4 - m8 - products[12, tile, i], m5 - m9 - products[13, tile, i]
            below2, below3 = m6 - m10 - products[14, tile, i], m7 - m11 - products[15, tile, i]
            best, place = above0 + above1 + above2, np.uint8(0)
            other = above1 - above2 - above3
            larger = (other > best) | (other != other)
            best, place = other if larger else best, np.uint8(1) if larger else place
            other = below0 + below1 + below2
            larger = (other > best) | (other != other)
            best, place = other if larger else best, np.uint8(2) if larger else place
            other = below1 - below2 - below3
            larger = (other > best) | (other != other)
            best, place = other if larger else best, np.uint8(3) if larger else place
            pooled[tile, i] = best + bias[i]
            places[tile, i] = place


def spread(back: Tensor, places: Tensor, found: Tensor) -> None:
    """A y Aᵀ of every tile y, ``back`` [tiles, C] at ``places`` and else 0, into ``found`` [16, tiles, C]."""
    loop = once_it_pays(_spread, SAVED["spread"] * found.numel())
    if loop is not None:
        loop(back.view(-1).numpy(), places.view(-1).numpy(), found.view(POINTS, -1).numpy())
        return
    into = found.view(4, 4, *back.shape)
    one, two, three, four = (torch.where(places == place, back, 0) for place in range(4))
    lines = (one, two), (one + three, two + four), (one - three, two - four), (-three, -four)
    for place, (left, right) in zip(into, lines, strict=True):
        place[0].copy_(left)
        torch.add(left, right, out=place[1])
        torch.sub(left, right, out=place[2])
        torch.neg(right, out=place[3])


def _spread(back: Numbers, places: Numbers, found: Numbers) -> None:
    block = 2048
    zero = back.dtype.type(0)
    at = np.empty((4, block), back.dtype)
    sums = np.empty((2, block), back.dtype)
    for begin in range(0, len(back), block):
        size = min(block, len(back) - begin)
        values, chosen = back[begin : begin + size], places[begin : begin + size]
        for place in range(4):
            own = at[place]
            for i in range(size):
                own[i] = values[i] if chosen[i] == place else zero
        for line in range(4):
            for side in range(2):
                own, above, below = sums[side], at[side], at[2 + side]
                if line == 0:
                    for i in range(size):
                        own[i] = above[i]
                elif line == 1:
                    for i in range(size):
                        own[i] = above[i] + below[i]
                elif line == 2:
                    for i in range(size):
                        own[i] = above[i] - below[i]
                else:
                    for i in range(size):
                        own[i] = -below[i]
            left, right = sums[0], sums[1]
            into = found[4 * line, begin : begin + size]
            for i in range(size):
                into[i] = left[i]
            into = found[4 * line + 1, begin : begin + size]
            for i in range(size):
                into[i] = left[i] + right[i]
            into = found[4 * line + 2, begin : begin + size]
            for i in range(size):
                into[i] = left[i] - right[i]
            into = found[4 * line + 3, begin : begin + size]
            for i in range(size):
                into[i] = -right[i]


def images(patches: Tensor, found: Tensor) -> None:
    """Σ of B p Bᵀ of every patch, where it lies: ``patches`` [16, tiles, C] into ``found`` [B, H, W, C]."""
    loop = once_it_pays(_images, SAVED["images"] * patches.numel())
    if loop is not None:
        loop(patches.view(POINTS, -1).numpy(), found.numpy())
        return
    rows, height, width, channels = found.shape
    down, across = tile_counts(height, width)
    p = patches.view(4, 4, rows, down, across, channels)
    found.zero_()
    for line, u in ((2, p[1] + p[2] - p[0]), (3, -p[3]), (0, p[0]), (1, p[1] - p[2] + p[3])):
        lines = found[:, line : line + 2 * down : 2]
        first, second, third, fourth = (lines[:, :, j : j + 2 * across : 2] for j in range(4))
        third.add_(u[1] + u[2] - u[0])
        fourth.sub_(u[3])
        first.add_(u[0])
        second.add_(u[1] - u[2] + u[3])


def _images(patches: Numbers, found: Numbers) -> None:
    rows, height, width, channels = found.shape
    down, across = (height - 2) // 2, (width - 2) // 2
    length = across * channels
    u = np.empty((4, length), found.dtype)
    found[:] = 0
    for tile_row in range(rows * down):
        image, above, begin = tile_row // down, 2 * (tile_row % down), tile_row * length
        for line in range(4):
            into = found[image, above + line].reshape(-1)
            for j in range(4):
                own = u[j]
                p0, p1 = patches[j, begin : begin + length], patches[4 + j, begin : begin + length]
                p2, p3 = patches[8 + j, begin : begin + length], patches[12 + j, begin : begin + length]
                if line == 0:
                    for i in range(length):
                        own[i] = p0[i]
                elif line == 1:
                    for i in range(length):
                        own[i] = p1[i] - p2[i] + p3[i]
                elif line == 2:
                    for i in range(length):
                        own[i] = p1[i] + p2[i] - p0[i]
                else:
                    for i in range(length):
                        own[i] = -p3[i]
            u0, u1, u2, u3 = u[0], u[1], u[2], u[3]
            for tile in range(across):
                at, to = tile * channels, 2 * tile * channels
                for i in range(channels):
                    into[to + i] += u0[at + i]
                to += channels
                for i in range(channels):
                    into[to + i] += u1[at + i] - u2[at + i] + u3[at + i]
                to += channels
                for i in range(channels):
                    into[to + i] += u1[at + i] + u2[at + i] - u0[at + i]
                to += channels
                for i in range(channels):
                    into[to + i] -= u3[at + i]


def filters(points: Tensor, found: Tensor) -> None:
    """Gᵀ p G of every filter's points: ``points`` [16, filters] into ``found`` [filters, 9], both without gaps."""
    loop = once_it_pays(_filters, SAVED["filters"] * points.numel())
    if loop is not None:
        loop(points.numpy(), found.numpy())
        return
    for line, own in enumerate(_narrowed(*points.view(4, 4, -1))):
        for place, one in enumerate(_narrowed(*own)):
            found[:, 3 * line + place] = one


def _narrowed(one: Tensor, two: Tensor, three: Tensor, four: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gᵀ times four rows."""
    both = 0.5 * (two + three)
    return one + both, 0.5 * (two - three), both + four


def _filters(points: Numbers, found: Numbers) -> None:
    block = 512
    half = points.dtype.type(0.5)
    sums, narrow = np.empty((12, block), points.dtype), np.empty((9, block), points.dtype)
    for begin in range(0, points.shape[1], block):
        size = min(block, points.shape[1] - begin)
        for j in range(4):
            p0, p1 = points[j, begin : begin + size], points[4 + j, begin : begin + size]
            p2, p3 = points[8 + j, begin : begin + size], points[12 + j, begin : begin + size]
            first, second, third = sums[j], sums[4 + j], sums[8 + j]
            for i in range(size):
                both = half * (p1[i] + p2[i])
                first[i] = p0[i] + both
                second[i] = half * (p1[i] - p2[i])
                third[i] = both + p3[i]
        for line in range(3):
            s0, s1, s2, s3 = sums[4 * line], sums[4 * line + 1], sums[4 * line + 2], sums[4 * line + 3]
            first, second, third = narrow[3 * line], narrow[3 * line + 1], narrow[3 * line + 2]
            for i in range(size):
                both = half * (s1[i] + s2[i])
                first[i] = s0[i] + both
                second[i] = half * (s1[i] - s2[i])
                third[i] = both + s3[i]
        for i in range(size):
            for place in range(9):
                found[begin + i, place] = narrow[place, i]
