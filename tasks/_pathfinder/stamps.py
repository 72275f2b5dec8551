"""Stamps: the small 8-bit pictures of dashes, of the space they occupy, and of the two discs.

Everything an image is made of is drawn once, here, through Pillow, exactly as the original generator (Linsley et al.
2018) draws it again and again: on a finer grid, shrunk with an 8-bit Lanczos filter.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from .geometry import (
    DEGREES,
    Floats,
    Ints,
    Parameters,
    candidate_offsets,
    displacements,
    offset_directions,
    opposite,
    seed_directions,
    turn_weights,
)

Levels = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int32]

_LANCZOS_REACH = 3  # pixels of the shrunk picture to either side
_FAR = 1 << 30  # further than any picture is wide


class Tables(NamedTuple):
    """All that the kernels need for one set of parameters and one margin.

    A *stamp* has a number: 0 to 359 for the first dash in that many degrees from -180, then 360 + c for a dash drawn
    from candidate c back towards its pivot; 360 + c also numbers the direction from the pivot to c. The area in use is
    kept with a border of `border(parameters, margin)` pixels, so that its pixels can be addressed by one *place*,
    y * stride + x, without asking whether they are inside the image.

    Ragged tables: the rows `start[s]` to `start[s + 1]` belong to stamp or direction s.
    """

    steps: Floats
    """(4, 360 + candidates, 2) displacements of a direction: 0 a first dash's tail to its head, 1 from there to its
    pivot, 2 from pivot to pivot, 3 the first target's tail to the second's (whole degrees from 0)"""
    searchable: Ints
    """(360,) 1 where a first dash in this direction can be placed at all"""
    room: Ints
    """(directions with room, 5) stamp, first and last row, first and last column free for the first target's tail"""
    offsets: Ints
    """(candidates, 2) candidates for the next tip, relative to the pivot"""
    ahead_start: Ints
    ahead: Ints
    """(rows, 5) by last direction: candidate, its weight, the sum of the weights so far, its (y, x) relative to the
    pivot; zero weights left out"""
    dash_start: Ints
    dash_pixels: Ints
    """(rows, 3) dy, dx and level of a dash"""
    mask_start: Ints
    mask_places: Places
    mask_levels: Levels
    """(rows,) relative place and level of the space that a dash takes"""
    masks: Levels
    """(stamps, s, s) the same space as a picture; the dash starts at the centre"""
    freedom: Levels
    """(stamps, s', s') 255 less the greatest level of the mask within the margin of a pixel"""
    core: Ints
    """(stamps, 4) first and last row, first and last column of a mask's levels that can cross anything"""
    reach: Ints
    """(stamps, 4) first and last row, first and last column of the pivots from which a step can meet a mask"""
    margin: int
    footprint_start: Ints
    footprint_places: Places
    """(rows,) the part of a first dash's mask that must be free, relative to its tail"""
    crossing: Ints
    """(256,) the least mask level that counts as a crossing where the occupancy has this level"""
    markers: Levels
    """(s, s, s, s) discs on a canvas of side s by the (y, x) of their centre: the filter depends on a near border"""
    values: Floats
    """(3, 256) grey value before stretching, by kind (target, distractor, marker) and stamp level"""


def border(parameters: Parameters, margin: int) -> int:
    """Pixels round the image that a stamp may reach from a pivot, which itself may lie a step outside."""
    return 2 * (parameters.dash_length + math.ceil(parameters.dash_thickness) + 2 * margin + 1)


def disc(radius: int) -> npt.NDArray[np.bool_]:
    """(2 radius + 1, 2 radius + 1) pixels within `radius` of the centre."""
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    return np.asarray(x**2 + y**2 <= radius**2)


def dilate(pictures: Levels, element: npt.NDArray[np.bool_]) -> Levels:
    """(..., H, W) greatest level under the (odd, symmetric) element round each pixel; beyond the edge counts as 0."""
    reach = element.shape[0] // 2
    height, width = pictures.shape[-2:]
    padded = np.pad(pictures, [(0, 0)] * (pictures.ndim - 2) + [(reach, reach)] * 2)
    greatest = np.zeros_like(pictures)
    for y, x in np.argwhere(element).tolist():
        np.maximum(greatest, padded[..., y : y + height, x : x + width], out=greatest)
    return greatest


def shrink(picture: Levels, side: int) -> Levels:
    """8-bit Lanczos of a square picture to (side, side)."""
    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.LANCZOS))


def dash_and_mask(parameters: Parameters, margin: int, direction: float) -> tuple[Levels, Levels]:
    """Stamps (side, side) of a dash that starts at the centre, and of the space it takes."""
    scale = parameters.antialias
    half = parameters.dash_length + math.ceil(parameters.dash_thickness) + margin
    centre = half * scale
    y, x = displacements(np.array([direction]), parameters.dash_length * scale)[0].tolist()
    large = Image.new("L", (2 * centre + 1, 2 * centre + 1))
    end = (math.ceil(centre + x), math.ceil(centre + y))  # Pillow's order: x first
    width = round(parameters.dash_thickness * scale)
    ImageDraw.Draw(large).line([(centre, centre), end], fill=255, width=width)
    line = np.asarray(large)
    side = 2 * half + 1
    return shrink(line, side), shrink(dilate(line, disc(margin * scale)), side)


def markers(parameters: Parameters) -> Levels:
    """`Tables.markers`. Centres within the filter's reach of an edge are drawn apart; all others look the same."""
    scale = parameters.antialias
    near_edge = math.ceil(parameters.marker_radius) + 2 * _LANCZOS_REACH
    side = 2 * near_edge + 1
    if side > parameters.resolution:
        raise ValueError(f"Pathfinder: marker_radius {parameters.marker_radius} is too large for the image")
    grid = np.arange(side * scale)
    canvases = np.zeros((side, side, side, side), np.uint8)
    for y in range(side):
        for x in range(side):
            distance = (grid[:, None] - y * scale) ** 2 + (grid[None, :] - x * scale) ** 2
            inside = distance <= (parameters.marker_radius * scale) ** 2
            canvases[y, x] = shrink(inside.astype(np.uint8) * np.uint8(255), side)
    return canvases


def _ragged(pictures: list[Levels]) -> tuple[Ints, Ints]:
    """Square stamps -> (start, (dy, dx, level) of the pixels that are not 0), the highest levels first."""
    rows = []
    for picture in pictures:
        y, x = np.nonzero(picture)
        half = picture.shape[0] // 2
        row = np.stack([y - half, x - half, picture[y, x]], axis=1).astype(np.int64)
        rows.append(row[np.argsort(-row[:, 2], kind="stable")])
    start = np.cumsum([0] + [len(row) for row in rows], dtype=np.int64)
    return start, np.concatenate(rows)


def _footprint(mask: Levels, half: int) -> Levels:
    """The part of a mask that the search for a free tail looks at: full pixels only, in a window cut to `half`.

    The original places the line one pixel right of and below the centre of its window.
    """
    full = np.where(mask == 255, mask, np.uint8(0))
    first = mask.shape[0] // 2 - half - 1
    window = slice(first, first + 2 * half + 1)
    return np.asarray(full[window, window])


def _searchable(footprint: Levels) -> bool:
    """Whether some pixel of the footprint falls inside the image at every tail, the image's four corners included.

    If not, the original's dilation returns the border value, the most negative number, and its search for a free tail
    then reports that nothing is free. At 32 pixels this leaves only the directions from -150 to -121 degrees.
    """
    y, x = (np.argwhere(footprint) - footprint.shape[0] // 2).T
    return all(bool(np.any((sy * y >= 0) & (sx * x >= 0))) for sy in (-1, 1) for sx in (-1, 1))


def _room(parameters: Parameters, footprints: list[Levels], searchable: Ints) -> Ints:
    """`Tables.room`: the footprint must stay two seed distances from the border, so its tail's place is a rectangle."""
    border = max(2 * parameters.seed_distance, parameters.padding)
    last = parameters.resolution - 1 - border
    rows = []
    for number in np.flatnonzero(searchable).tolist():
        used = np.argwhere(footprints[number]) - footprints[number].shape[0] // 2
        (top, left), (bottom, right) = (border - used.min(axis=0)).tolist(), (last - used.max(axis=0)).tolist()
        if top <= bottom and left <= right:
            rows.append((number, top, bottom, left, right))
    if not rows:
        raise ValueError("Pathfinder: no room for a first dash; lower seed_distance")
    return np.array(rows, dtype=np.int64)


def _values(parameters: Parameters) -> Floats:
    """`Tables.values`. Dashes pass through 32-bit floats in the original, discs do not."""
    level = np.arange(256) / 255
    target = level * (parameters.snake_contrast * parameters.dash_contrast)
    distractor = level * parameters.snake_contrast
    return np.stack([target.astype(np.float32), distractor.astype(np.float32), level]).astype(np.float64)


def _crossing() -> Ints:
    """`Tables.crossing`: occupancy + mask of at least 1.8, both being 32-bit values of level / 255."""
    value = (np.arange(256) / 255).astype(np.float32).astype(np.float64)
    least: Ints = np.sum(value[:, None] + value[None, :] < 1.8, axis=1).astype(np.int64)
    return least


def _steps(parameters: Parameters, margin: int, seeds: Floats, ahead: Floats) -> Floats:
    """`Tables.steps`."""
    length = parameters.dash_length
    backwards = np.array([opposite(t) for t in seeds.tolist()])
    steps = np.zeros((4, len(seeds) + len(ahead), 2))
    steps[0, :DEGREES] = displacements(seeds, length)
    steps[1, :DEGREES] = displacements(backwards, length + margin)
    steps[2] = displacements(np.concatenate([seeds, ahead]), length + 2 * margin)
    steps[3, :DEGREES] = displacements(np.arange(DEGREES) * math.pi / 180, parameters.seed_distance)
    return steps


def _ahead(weights: Ints, offsets: Ints) -> tuple[Ints, Ints]:
    """(directions, candidates) weights, (candidates, 2) offsets -> `Tables.ahead_start` and `Tables.ahead`."""
    direction, candidate = np.nonzero(weights)
    sums = np.cumsum(weights, axis=1)[direction, candidate]
    rows = np.stack([candidate, weights[direction, candidate], sums, *offsets[candidate].T], axis=1)
    return np.concatenate([[0], np.cumsum((weights > 0).sum(axis=1))]).astype(np.int64), rows.astype(np.int64)


def _extent(picture: npt.NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """First and last row, first and last column of what is set, relative to the centre; nothing is nowhere near."""
    if not picture.any():
        return _FAR, -_FAR, _FAR, -_FAR
    half = picture.shape[0] // 2
    (top, left), (bottom, right) = (f(np.argwhere(picture), axis=0).tolist() for f in (np.min, np.max))
    return top - half, bottom - half, left - half, right - half


def _reach(masks: Levels, core: Ints, offsets: Ints, margin: int) -> Ints:
    """`Tables.reach`: a step looks at the margins of the candidates and at the cores of their dashes."""
    seen = np.abs(offsets).max() + max(margin, np.abs(core[DEGREES:][core[DEGREES:, 0] < _FAR]).max(initial=0))
    extents = np.array([_extent(mask > 0) for mask in masks], dtype=np.int64)
    reach: Ints = extents + np.array([-seen, seen, -seen, seen])
    return reach


@functools.lru_cache(maxsize=8)
def tables(parameters: Parameters, margin: int) -> Tables:
    """Draw all stamps of these parameters at one margin (kept; about a tenth of a second)."""
    stride = parameters.resolution + 2 * border(parameters, margin)
    flat = np.array([stride, 1])
    seeds = seed_directions()
    offsets = candidate_offsets(parameters.dash_length + margin)
    forward = offset_directions(offsets)
    drawn = seeds.tolist() + [opposite(t) for t in forward.tolist()]
    pairs = [dash_and_mask(parameters, margin, t) for t in drawn]
    dash_start, dash_pixels = _ragged([dash for dash, _ in pairs])
    mask_start, mask_pixels = _ragged([mask for _, mask in pairs])
    footprints = [_footprint(mask, parameters.dash_length + margin) for _, mask in pairs[:DEGREES]]
    searchable = np.array([_searchable(footprint) for footprint in footprints], dtype=np.int64)
    footprint_start, footprint_pixels = _ragged(footprints)
    weights = turn_weights(np.concatenate([seeds, forward]), forward, parameters.continuity)
    ahead_start, ahead = _ahead(weights, offsets)
    crossing = _crossing()
    masks = np.stack([mask for _, mask in pairs])
    core = np.array([_extent(mask >= crossing.min()) for mask in masks], dtype=np.int64)
    return Tables(
        steps=_steps(parameters, margin, seeds, forward),
        searchable=searchable,
        room=_room(parameters, footprints, searchable),
        offsets=offsets,
        ahead_start=ahead_start,
        ahead=ahead,
        dash_start=dash_start,
        dash_pixels=dash_pixels,
        mask_start=mask_start,
        mask_places=(mask_pixels[:, :2] @ flat).astype(np.int32),
        mask_levels=mask_pixels[:, 2].astype(np.uint8),
        masks=masks,
        freedom=255 - dilate(np.pad(masks, [(0, 0), (margin, margin), (margin, margin)]), disc(margin)),
        core=core,
        reach=_reach(masks, core, offsets, margin),
        margin=margin,
        footprint_start=footprint_start,
        footprint_places=(footprint_pixels[:, :2] @ flat).astype(np.int32),
        crossing=crossing,
        markers=markers(parameters),
        values=_values(parameters),
    )
