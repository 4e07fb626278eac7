"""The loops of Winograd's transforms, for Numba to compile; what each is stands in :mod:`privfl.engine.winograd`.

Every loop writes one array alone, so that the compiler need not ask which of several overlap. Nothing here may be
contracted or reordered: the tensor operations that stand for these loops give the same bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = math.sqrt(0.5)
"""The smaller of the two numbers at which polynomials are taken; the other one is twice as large."""
Numbers = NDArray[Any]


def patches(images: Numbers, found: Numbers) -> None:
    """``images`` [B, H, W, C] into ``found`` [36, tiles, C]."""
    rows, height, width, channels = images.shape
    down, across = (height - 2) // 4, (width - 2) // 4
    number = images.dtype.type
    root, half, two, more = number(ROOT), number(0.5), number(2), number(2.5)
    length = width * channels
    sums = np.empty((6, length), images.dtype)
    for tile_row in range(rows * down):
        image, above = tile_row // down, 4 * (tile_row % down)
        d0, d1 = images[image, above].reshape(-1), images[image, above + 1].reshape(-1)
        d2, d3 = images[image, above + 2].reshape(-1), images[image, above + 3].reshape(-1)
        d4, d5 = images[image, above + 4].reshape(-1), images[image, above + 5].reshape(-1)
        for i in range(length):
            sums[0, i] = d0[i] - more * d2[i] + d4[i]
        for i in range(length):
            sums[1, i] = (d4[i] - two * d2[i]) + root * (d3[i] - two * d1[i])
        for i in range(length):
            sums[2, i] = (d4[i] - two * d2[i]) - root * (d3[i] - two * d1[i])
        for i in range(length):
            sums[3, i] = (d4[i] - half * d2[i]) + root * (two * d3[i] - d1[i])
        for i in range(length):
            sums[4, i] = (d4[i] - half * d2[i]) - root * (two * d3[i] - d1[i])
        for i in range(length):
            sums[5, i] = d1[i] - more * d3[i] + d5[i]
        begin, end = tile_row * across, (tile_row + 1) * across
        for row in range(6):
            d = sums[row].reshape(width, channels)
            into = found[6 * row, begin:end]
            for tile in range(across):
                at = 4 * tile
                for i in range(channels):
                    into[tile, i] = d[at, i] - more * d[at + 2, i] + d[at + 4, i]
            into = found[6 * row + 1, begin:end]
            for tile in range(across):
                at = 4 * tile
                for i in range(channels):
                    odd = root * (d[at + 3, i] - two * d[at + 1, i])
                    into[tile, i] = (d[at + 4, i] - two * d[at + 2, i]) + odd
            into = found[6 * row + 2, begin:end]
            for tile in range(across):
                at = 4 * tile
                for i in range(channels):
                    odd = root * (d[at + 3, i] - two * d[at + 1, i])
                    into[tile, i] = (d[at + 4, i] - two * d[at + 2, i]) - odd
            into = found[6 * row + 3, begin:end]
            for tile in range(across):
                at = 4 * tile
                for i in range(channels):
                    odd = root * (two * d[at + 3, i] - d[at + 1, i])
                    into[tile, i] = (d[at + 4, i] - half * d[at + 2, i]) + odd
            into = found[6 * row + 4, begin:end]
            for tile in range(across):
                at = 4 * tile
                for i in range(channels):
                    odd = root * (two * d[at + 3, i] - d[at + 1, i])
                    into[tile, i] = (d[at + 4, i] - half * d[at + 2, i]) - odd
            into = found[6 * row + 5, begin:end]
            for tile in range(across):
                at = 4 * tile
                for i in range(channels):
                    into[tile, i] = d[at + 1, i] - more * d[at + 3, i] + d[at + 5, i]


def largest(products: Numbers, bias: Numbers, pooled: Numbers, places: Numbers) -> None:
    """``products`` [36, tiles, C] into ``pooled`` and ``places`` [B, down, across, C]."""
    _, down, across, channels = pooled.shape
    tiles_across = (across + 1) // 2
    of_image = (down + 1) // 2 * tiles_across
    number = products.dtype.type
    root, half, two, four = number(ROOT), number(0.5), number(2), number(4)
    u, y = np.empty((4, 6, channels), products.dtype), np.empty((4, 4, channels), products.dtype)
    for tile in range(products.shape[1]):
        for j in range(6):
            m0, m1, m2 = products[j, tile], products[6 + j, tile], products[12 + j, tile]
            m3, m4, m5 = products[18 + j, tile], products[24 + j, tile], products[30 + j, tile]
            for i in range(channels):
                u[0, j, i] = m0[i] + (m1[i] + m2[i]) + (m3[i] + m4[i])
            for i in range(channels):
                u[1, j, i] = root * ((m1[i] - m2[i]) + two * (m3[i] - m4[i]))
            for i in range(channels):
                u[2, j, i] = half * (m1[i] + m2[i]) + two * (m3[i] + m4[i])
            for i in range(channels):
                u[3, j, i] = root * (half * (m1[i] - m2[i]) + four * (m3[i] - m4[i])) + m5[i]
        for k in range(4):
            m0, m1, m2, m3, m4, m5 = u[k, 0], u[k, 1], u[k, 2], u[k, 3], u[k, 4], u[k, 5]
            for i in range(channels):
                y[k, 0, i] = m0[i] + (m1[i] + m2[i]) + (m3[i] + m4[i])
            for i in range(channels):
                y[k, 1, i] = root * ((m1[i] - m2[i]) + two * (m3[i] - m4[i]))
            for i in range(channels):
                y[k, 2, i] = half * (m1[i] + m2[i]) + two * (m3[i] + m4[i])
            for i in range(channels):
                y[k, 3, i] = root * (half * (m1[i] - m2[i]) + four * (m3[i] - m4[i])) + m5[i]
        image, rest = tile // of_image, tile % of_image
        top, left = 2 * (rest // tiles_across), 2 * (rest % tiles_across)
        for p in range(min(2, down - top)):
            for q in range(min(2, across - left)):
                y0, y1 = y[2 * p, 2 * q], y[2 * p, 2 * q + 1]
                y2, y3 = y[2 * p + 1, 2 * q], y[2 * p + 1, 2 * q + 1]
                values, chosen = pooled[image, top + p, left + q], places[image, top + p, left + q]
                for i in range(channels):
                    best, place = y0[i], np.uint8(0)
                    other = y1[i]
                    larger = (other > best) | (other != other)
                    best, place = other if larger else best, np.uint8(1) if larger else place
                    other = y2[i]
                    larger = (other > best) | (other != other)
                    best, place = other if larger else best, np.uint8(2) if larger else place
                    other = y3[i]
                    larger = (other > best) | (other != other)
                    best, place = other if larger else best, np.uint8(3) if larger else place
                    values[i] = best + bias[i]
                    chosen[i] = place


def spread(back: Numbers, places: Numbers, found: Numbers) -> None:
    """``back`` at ``places``, both [B, down, across, C], into ``found`` [36, tiles, C]."""
    _, down, across, channels = back.shape
    tiles_across = (across + 1) // 2
    of_image = (down + 1) // 2 * tiles_across
    number = back.dtype.type
    root, half, two, four, zero = number(ROOT), number(0.5), number(2), number(4), number(0)
    y, u = np.empty((4, 4, channels), back.dtype), np.empty((6, 4, channels), back.dtype)
    for tile in range(found.shape[1]):
        image, rest = tile // of_image, tile % of_image
        top, left = 2 * (rest // tiles_across), 2 * (rest % tiles_across)
        for p in range(2):
            for q in range(2):
                inside = top + p < down and left + q < across
                above, beside = (top + p, left + q) if inside else (top, left)
                values, chosen = back[image, above, beside], places[image, above, beside]
                for place in range(4):
                    own, asked = y[2 * p + place // 2, 2 * q + place % 2], place if inside else 4
                    for i in range(channels):
                        own[i] = values[i] if chosen[i] == asked else zero
        for j in range(4):
            y0, y1, y2, y3 = y[0, j], y[1, j], y[2, j], y[3, j]
            for i in range(channels):
                u[0, j, i] = y0[i]
            for i in range(channels):
                u[1, j, i] = (y0[i] + half * y2[i]) + root * (y1[i] + half * y3[i])
            for i in range(channels):
                u[2, j, i] = (y0[i] + half * y2[i]) - root * (y1[i] + half * y3[i])
            for i in range(channels):
                u[3, j, i] = (y0[i] + two * y2[i]) + root * (two * y1[i] + four * y3[i])
            for i in range(channels):
                u[4, j, i] = (y0[i] + two * y2[i]) - root * (two * y1[i] + four * y3[i])
            for i in range(channels):
                u[5, j, i] = y3[i]
        for k in range(6):
            y0, y1, y2, y3 = u[k, 0], u[k, 1], u[k, 2], u[k, 3]
            into = found[6 * k, tile]
            for i in range(channels):
                into[i] = y0[i]
            into = found[6 * k + 1, tile]
            for i in range(channels):
                into[i] = (y0[i] + half * y2[i]) + root * (y1[i] + half * y3[i])
            into = found[6 * k + 2, tile]
            for i in range(channels):
                into[i] = (y0[i] + half * y2[i]) - root * (y1[i] + half * y3[i])
            into = found[6 * k + 3, tile]
            for i in range(channels):
                into[i] = (y0[i] + two * y2[i]) + root * (two * y1[i] + four * y3[i])
            into = found[6 * k + 4, tile]
            for i in range(channels):
                into[i] = (y0[i] + two * y2[i]) - root * (two * y1[i] + four * y3[i])
            into = found[6 * k + 5, tile]
            for i in range(channels):
                into[i] = y3[i]


def images(patches: Numbers, found: Numbers) -> None:
    """``patches`` [36, tiles, C] into ``found`` [B, H, W, C]."""
    rows, height, width, channels = found.shape
    down, across = (height - 2) // 4, (width - 2) // 4
    number = found.dtype.type
    root, half, two, more = number(ROOT), number(0.5), number(2), number(2.5)
    lines = np.zeros((6, width, channels), found.dtype)
    length = width * channels
    found[:] = 0
    for tile_row in range(rows * down):
        image, above = tile_row // down, 4 * (tile_row % down)
        begin, end = tile_row * across, (tile_row + 1) * across
        for k in range(6):
            p0, p1, p2 = patches[6 * k, begin:end], patches[6 * k + 1, begin:end], patches[6 * k + 2, begin:end]
            p3, p4, p5 = patches[6 * k + 3, begin:end], patches[6 * k + 4, begin:end], patches[6 * k + 5, begin:end]
            into = lines[k]
            for tile in range(across):
                for i in range(channels):
                    into[4 * tile, i] = p0[tile, i]
            for tile in range(across):
                for i in range(channels):
                    even, odd = p1[tile, i] - p2[tile, i], p3[tile, i] - p4[tile, i]
                    into[4 * tile + 1, i] = p5[tile, i] - root * (two * even + odd)
            for tile in range(across):
                for i in range(channels):
                    near, far = p1[tile, i] + p2[tile, i], p3[tile, i] + p4[tile, i]
                    into[4 * tile + 2, i] = -(more * p0[tile, i]) - (two * near + half * far)
            for tile in range(across):
                for i in range(channels):
                    even, odd = p1[tile, i] - p2[tile, i], p3[tile, i] - p4[tile, i]
                    into[4 * tile + 3, i] = root * (even + two * odd) - more * p5[tile, i]
            for i in range(channels):
                into[4 * across, i] = 0
                into[4 * across + 1, i] = 0
            for tile in range(across):
                for i in range(channels):
                    near, far = p1[tile, i] + p2[tile, i], p3[tile, i] + p4[tile, i]
                    into[4 * tile + 4, i] += p0[tile, i] + near + far
            for tile in range(across):
                for i in range(channels):
                    into[4 * tile + 5, i] += p5[tile, i]
        h0, h1, h2 = lines[0].reshape(-1), lines[1].reshape(-1), lines[2].reshape(-1)
        h3, h4, h5 = lines[3].reshape(-1), lines[4].reshape(-1), lines[5].reshape(-1)
        line = found[image, above].reshape(-1)
        for i in range(length):
            line[i] += h0[i]
        line = found[image, above + 1].reshape(-1)
        for i in range(length):
            line[i] += h5[i] - root * (two * (h1[i] - h2[i]) + (h3[i] - h4[i]))
        line = found[image, above + 2].reshape(-1)
        for i in range(length):
            line[i] = -(more * h0[i]) - (two * (h1[i] + h2[i]) + half * (h3[i] + h4[i]))
        line = found[image, above + 3].reshape(-1)
        for i in range(length):
            line[i] = root * ((h1[i] - h2[i]) + two * (h3[i] - h4[i])) - more * h5[i]
        line = found[image, above + 4].reshape(-1)
        for i in range(length):
            line[i] = h0[i] + (h1[i] + h2[i]) + (h3[i] + h4[i])
        line = found[image, above + 5].reshape(-1)
        for i in range(length):
            line[i] = h5[i]


def filters(points: Numbers, found: Numbers) -> None:
    """``points`` [36, filters] into ``found`` [filters, 9]."""
    block = 512
    number = points.dtype.type
    two, whole, third = number(2), number(2 / 3), number(1 / 3)
    sixth, root = number(1 / 6), number(ROOT / 3)
    sums, narrow = np.empty((3, 6, block), points.dtype), np.empty((3, 3, block), points.dtype)
    for begin in range(0, points.shape[1], block):
        size = min(block, points.shape[1] - begin)
        for j in range(9):  # six columns, and then the three lines that they make
            if j < 6:
                p0, p1, p2 = points[j, begin:], points[6 + j, begin:], points[12 + j, begin:]
                p3, p4, p5 = points[18 + j, begin:], points[24 + j, begin:], points[30 + j, begin:]
                a, b, c = sums[0, j], sums[1, j], sums[2, j]
            else:
                k = j - 6
                p0, p1, p2, p3, p4, p5 = sums[k, 0], sums[k, 1], sums[k, 2], sums[k, 3], sums[k, 4], sums[k, 5]
                a, b, c = narrow[k, 0], narrow[k, 1], narrow[k, 2]
            for i in range(size):
                a[i] = p0[i] - whole * (p1[i] + p2[i]) + sixth * (p3[i] + p4[i])
            for i in range(size):
                b[i] = root * (two * (p2[i] - p1[i]) + (p3[i] - p4[i]))
            for i in range(size):
                c[i] = third * ((p3[i] + p4[i]) - (p1[i] + p2[i])) + p5[i]
        for i in range(size):
            for place in range(9):
                found[begin + i, place] = narrow[place // 3, place % 3, i]
