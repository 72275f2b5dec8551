"""The Pathfinder generator against images of the original one, and against itself.

Two-sample tests are at the 1 % level, each for itself; seeds are fixed, so a test either always passes or always fails.
The reference images are looked for in the folder named by ATTNBENCH_TEST_DATA.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnbench.tasks._pathfinder import Batch, generate, parameters
from attnbench.tasks._pathfinder.growth import lay_out
from attnbench.tasks._pathfinder.painting import TARGET
from attnbench.tasks._pathfinder.stamps import Tables, border, tables
from scipy import ndimage, stats

PINNED = json.loads(Path(__file__).with_name("pathfinder_pinned.json").read_text())
COUNT = {32: 2000, 128: 400}
MARKER_RADIUS = {32: 1.5, 128: 3.0}


@cache
def reference(resolution: int) -> dict[str, np.ndarray]:
    folder = os.environ.get("ATTNBENCH_TEST_DATA")
    if not folder:
        pytest.skip("ATTNBENCH_TEST_DATA names no folder with images of the original generator")
    path = Path(folder) / f"pathfinder{resolution}_hard_reference.npz"
    if not path.exists():
        pytest.skip(f"{path} is missing")
    with np.load(path) as archive:
        data = dict(archive)
    data["contours"] = np.stack([data["snake0"], data["snake1"]], axis=1)
    return data


@cache
def ours(resolution: int) -> dict[str, np.ndarray]:
    return generate(parameters(resolution, "hard"), 0, range(COUNT[resolution]), contours=True)._asdict()


@cache
def matched(resolution: int) -> dict[str, np.ndarray]:
    """Our images with the reference's shares of margins: its 50 images at 128 happen to have 20 : 30."""
    mine, theirs = ours(resolution), reference(resolution)["meta"][:, 9].astype(int)
    wanted = {margin: int((theirs == margin).sum()) for margin in np.unique(theirs).tolist()}
    places = {margin: np.flatnonzero(mine["margins"] == margin) for margin in wanted}
    times = min(len(places[margin]) // count for margin, count in wanted.items())
    chosen = np.concatenate([places[margin][: times * count] for margin, count in wanted.items()])
    return {name: value[chosen] for name, value in mine.items()}


def components(images: np.ndarray, level: int) -> np.ndarray:
    eight = np.ones((3, 3))
    return np.array([ndimage.label(image > level, structure=eight)[1] for image in images])


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Euclidean, by image: the mean over both contours, which are not independent."""
    return np.sqrt(((a - b) ** 2).sum(-1)).reshape(len(a), -1).mean(axis=1)


def shares(contours: np.ndarray) -> np.ndarray:
    """Drawings of contours (..., R, R) relative to their brightest pixel: the reference keeps another scale."""
    return contours / contours.max(axis=(-2, -1), keepdims=True)


def brightness(data: dict[str, np.ndarray], resolution: int, kind: str) -> np.ndarray:
    """95th percentile of grey value on target dashes or on distractors, away from the discs, by image."""
    grid = np.indices((resolution, resolution)).transpose(1, 2, 0)
    values = []
    for image, contours, discs in zip(data["images"], data["contours"], data["disc_centres"], strict=True):
        share = shares(contours).max(axis=0)
        away = np.all([np.linalg.norm(grid - disc, axis=-1) > MARKER_RADIUS[resolution] + 2 for disc in discs], axis=0)
        chosen = share >= 0.5 if kind == "targets" else (share < 0.05) & (image > 64)
        if np.any(chosen & away):
            values.append(np.percentile(image[chosen & away], 95))
    return np.array(values)


def border_profile(images: np.ndarray) -> np.ndarray:
    """(images, R / 2) mean intensity by distance from the border."""
    side = images.shape[1]
    y, x = np.indices((side, side))
    ring = np.minimum(np.minimum(y, x), side - 1 - np.maximum(y, x))
    return np.stack([images[:, ring == r].mean(axis=1) for r in range(side // 2)], axis=1)


STATISTICS: dict[str, Any] = {
    "mean": lambda d, _: d["images"].mean(axis=(1, 2)),
    "sd": lambda d, _: d["images"].std(axis=(1, 2)),
    "lit above 0": lambda d, _: (d["images"] > 0).sum(axis=(1, 2)),
    "lit above 64": lambda d, _: (d["images"] > 64).sum(axis=(1, 2)),
    "lit above 128": lambda d, _: (d["images"] > 128).sum(axis=(1, 2)),
    "components above 64": lambda d, _: components(d["images"], 64),
    "components above 128": lambda d, _: components(d["images"], 128),
    "lit in a contour": lambda d, _: (shares(d["contours"]) > 0.05).sum(axis=(2, 3)).mean(axis=1),
    "tip to tip": lambda d, _: distance(d["origin_tips"], d["terminal_tips"]),
    "seed to seed": lambda d, _: distance(d["origin_tips"][:, 0], d["origin_tips"][:, 1]),
    "disc to disc": lambda d, _: distance(d["disc_centres"][:, 0], d["disc_centres"][:, 1]),
    "first tail": lambda d, _: d["origin_tips"][:, 0] @ [1000, 1],
    "first end, rows": lambda d, _: d["terminal_tips"][:, 0, 0],
    "first end, columns": lambda d, _: d["terminal_tips"][:, 0, 1],
    "distractors placed": lambda d, _: d["distractors_placed"],
    "distractor attempts": lambda d, _: d["distractor_attempts"],
    "brightness of targets": lambda d, side: brightness(d, side, "targets"),
    "brightness of distractors": lambda d, side: brightness(d, side, "distractors"),
}


@pytest.mark.parametrize("resolution", [32, 128])
@pytest.mark.parametrize("name", STATISTICS)
def test_statistic_has_the_original_distribution(name: str, resolution: int) -> None:
    theirs = STATISTICS[name](reference(resolution), resolution)
    mine = STATISTICS[name](matched(resolution), resolution)
    assert stats.ks_2samp(mine, theirs).pvalue > 0.01, (np.mean(mine), np.mean(theirs))
    assert stats.mannwhitneyu(mine, theirs).pvalue > 0.01, (np.mean(mine), np.mean(theirs))


@pytest.mark.parametrize("resolution", [32, 128])
def test_intensity_by_distance_from_the_border(resolution: int) -> None:
    """Hotelling's T^2 (chi-squared for large samples) on the profile; at 128 in eight wider rings."""
    mine, theirs = (border_profile(d["images"]) for d in (matched(resolution), reference(resolution)))
    if resolution == 128:
        mine, theirs = (p.reshape(len(p), 8, 8).mean(axis=2) for p in (mine, theirs))
    gap = mine.mean(axis=0) - theirs.mean(axis=0)
    spread = np.cov(mine.T) / len(mine) + np.cov(theirs.T) / len(theirs)
    assert stats.chi2.sf(gap @ np.linalg.solve(spread, gap), len(gap)) > 0.01


@pytest.mark.parametrize("resolution", [32, 128])
def test_trials_have_the_original_distribution(resolution: int) -> None:
    """The original also counts trials whose first direction has no room; add as many as chance would."""
    setting = parameters(resolution, "hard")
    share = np.mean([len(tables(setting, margin).room) / 360 for margin in setting.margins])
    trials = matched(resolution)["contour_trials"]
    trials = trials + (np.random.default_rng(0).negative_binomial(trials, share) if share < 1 else 0)
    assert stats.ks_2samp(trials, reference(resolution)["two_snake_trials"]).pvalue > 0.01


def painted(t: Tables, stamp: int, y: int, x: int, side: int) -> np.ndarray:
    """A target dash alone at the scale of the reference's contours: 127.5 a unit, rounded to even."""
    dy, dx, level = t.dash_pixels[t.dash_start[stamp] : t.dash_start[stamp + 1]].T
    picture = np.zeros((side, side), np.uint8)
    inside = (dy + y >= 0) & (dy + y < side) & (dx + x >= 0) & (dx + x < side)
    grey = np.rint(np.round(t.values[TARGET, level] * 127.5, 3))
    picture[(dy + y)[inside], (dx + x)[inside]] = grey[inside]
    return picture


def chain(t: Tables, drawing: np.ndarray, dashes: int, tip: tuple[int, ...], end: tuple[int, ...]) -> list[int] | None:
    """Stamps that paint the drawing exactly, from a first dash at `tip` to a last one at `end`; None without any."""
    side = len(drawing)

    def step(point: tuple[int, ...], displacement: np.ndarray) -> tuple[int, int]:
        return math.ceil(point[0] + displacement[0]), math.ceil(point[1] + displacement[1])

    def grow(
        point: tuple[int, ...], pivot: tuple[int, int], picture: np.ndarray, stamps: list[int]
    ) -> list[int] | None:
        if len(stamps) == dashes:
            return stamps if point == end and np.array_equal(picture, drawing) else None
        pivot = step(pivot, t.steps[2, stamps[-1]])
        for candidate in t.ahead[t.ahead_start[stamps[-1]] : t.ahead_start[stamps[-1] + 1], 0].tolist():
            y, x = pivot[0] + int(t.offsets[candidate, 0]), pivot[1] + int(t.offsets[candidate, 1])
            if 0 <= y < side and 0 <= x < side:
                dash = painted(t, 360 + candidate, y, x, side)
                if np.all(dash <= drawing):
                    found = grow((y, x), pivot, np.maximum(picture, dash), [*stamps, 360 + candidate])
                    if found:
                        return found
        return None

    for stamp in range(360):
        dash = painted(t, stamp, tip[0], tip[1], side)
        if np.all(dash <= drawing):
            found = grow(tip, step(step(tip, t.steps[0, stamp]), t.steps[1, stamp]), dash, [stamp])
            if found:
                return found
    return None


@pytest.mark.parametrize("resolution", [32, 128])
def test_reference_contours_are_chains_of_these_stamps(resolution: int) -> None:
    """Pixel for pixel: stamps, candidates, steps and their rounding are those of the original."""
    data = reference(resolution)
    setting = parameters(resolution, "hard")
    for i in range({32: 40, 128: 10}[resolution]):
        t = tables(setting, int(data["meta"][i, 9]))
        for k in range(2):
            tip, end = tuple(data["origin_tips"][i, k].tolist()), tuple(data["terminal_tips"][i, k].tolist())
            found = chain(t, data["contours"][i, k], setting.contour_length, tip, end)
            assert found is not None, (i, k)
            assert k == 1 or found[0] in t.room[:, 0]


@pytest.mark.parametrize(
    ("level", "mean", "sd", "lit", "placed"),
    [
        ("easy", (0.0508, 0.0069), (0.168, 0.012), (233, 34), 3.3),
        ("intermediate", (0.0612, 0.0076), (0.181, 0.011), (275, 38), 1.9),
    ],
)
def test_other_levels_agree_with_measured_moments(
    level: str, mean: tuple[float, float], sd: tuple[float, float], lit: tuple[float, float], placed: float
) -> None:
    """Mean and sd of 400 images of the original: means within 3 standard errors (and rounding), sds within 15 %."""
    batch = generate(parameters(32, level), 0, range(4000))
    value = batch.images / 255
    for measured, (centre, spread), rounding in (
        (value.mean(axis=(1, 2)), mean, 5e-5),
        (value.std(axis=(1, 2)), sd, 5e-4),
        ((batch.images > 0).sum(axis=(1, 2)), lit, 0.5),
    ):
        assert abs(measured.mean() - centre) < 3 * spread * math.sqrt(1 / 400 + 1 / 4000) + rounding
        assert abs(measured.std() / spread - 1) < 0.15
    placed_error = batch.distractors_placed.std() * math.sqrt(1 / 400 + 1 / 4000)
    assert abs(batch.distractors_placed.mean() - placed) < 3 * placed_error + 0.05


def test_labels_are_balanced_and_say_what_the_discs_do() -> None:
    batch = Batch(**ours(32))
    assert stats.binomtest(int(batch.labels.sum()), len(batch.labels)).pvalue > 0.01
    origin, terminal = batch.disc_centres[:, :1], batch.disc_centres[:, 1:]
    starts, ends = (batch.origin_tips == origin).all(-1), (batch.terminal_tips == terminal).all(-1)
    assert starts.any(1).all() and ends.any(1).all()
    clear = (starts.sum(1) == 1) & (ends.sum(1) == 1)
    assert clear.mean() > 0.99
    assert np.array_equal((starts.argmax(1) == ends.argmax(1))[clear], batch.labels[clear] == 1)
    assert stats.binomtest(int(starts.argmax(1)[clear].sum()), int(clear.sum())).pvalue > 0.01


def level_map(t: Tables, dash: np.ndarray, side: int, edge: int) -> np.ndarray:
    """The space that a dash (y, x, stamp) takes, flat, in the layout of the kernels."""
    levels = np.zeros((side + 2 * edge) ** 2, np.int64)
    rows = slice(t.mask_start[dash[2]], t.mask_start[dash[2] + 1])
    levels[(dash[0] + edge) * (side + 2 * edge) + dash[1] + edge + t.mask_places[rows]] = t.mask_levels[rows]
    return levels


def test_distractors_may_cross_the_last_dash_of_the_first_target_only() -> None:
    """A slip of the original: that dash never joins the occupied area."""
    setting = parameters(32, "hard")
    t, edge, count = tables(setting, 1), border(setting, 1), 400
    facts, targets = np.full((count, 6), -1), np.zeros((count, 2, 14, 3), np.int64)
    distractors = np.zeros((count, 5, 4, 3), np.int64)
    sizes, key = np.array([32, 1, edge, 1]), np.array([0, 32, 14], np.uint64)
    lay_out(t, sizes, 0, key, np.arange(count), facts, targets, distractors)
    crossed = np.zeros((2, 14), int)
    for i in np.flatnonzero(facts[:, 3]):
        # The seed of a distractor is not tested for crossings, its other dashes are.
        later = [level_map(t, dash, 32, edge) for dash in distractors[i, : facts[i, 3], 1:].reshape(-1, 3)]
        for k, number in np.ndindex(2, 14):
            limit = t.crossing[level_map(t, targets[i, k, number], 32, edge)]
            crossed[k, number] += any((levels >= limit).any() for levels in later)
    assert crossed[0, -1] > 0
    crossed[0, -1] = 0
    assert not crossed.any()


def test_every_image_spans_all_grey_values() -> None:
    images = ours(32)["images"]
    assert (images.min(axis=(1, 2)) == 0).all() and (images.max(axis=(1, 2)) == 255).all()


def test_single_image_statistics_do_not_give_the_label_away() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    batch = generate(parameters(32, "hard"), 3, range(6000))
    counts = [(batch.images > level).sum(axis=(1, 2)) for level in (0, 64, 128, 192)]
    features = np.stack([batch.images.mean(axis=(1, 2)), batch.images.std(axis=(1, 2)), *counts], axis=1)
    features = preprocessing.StandardScaler().fit_transform(np.hstack([features, border_profile(batch.images)]))
    model = linear_model.LogisticRegression(max_iter=1000).fit(features[:4000], batch.labels[:4000])
    right = int((model.predict(features[4000:]) == batch.labels[4000:]).sum())
    assert stats.binomtest(right, 2000).pvalue > 0.01, right / 2000


def digest(resolution: int, level: str, seed: int, indices: range) -> str:
    return sha(generate(parameters(resolution, level), seed, indices))


def sha(batch: Batch) -> str:
    return hashlib.sha256(batch.images.tobytes() + batch.labels.tobytes()).hexdigest()


@pytest.mark.parametrize("pin", PINNED, ids=lambda pin: f"{pin['resolution']}-{pin['level']}")
def test_pixels_are_pinned(pin: dict[str, Any]) -> None:
    assert digest(pin["resolution"], pin["level"], pin["seed"], range(pin["images"])) == pin["sha256"]


@pytest.mark.parametrize("resolution", [32, 128])
def test_split_and_order_of_a_batch_do_not_matter(resolution: int) -> None:
    setting = parameters(resolution, "hard")
    whole = generate(setting, 7, range(12))
    order = np.random.default_rng(0).permutation(12)
    for name, part in generate(setting, 7, order, contours=True)._asdict().items():
        if name != "contours":
            assert np.array_equal(part, getattr(whole, name)[order]), name
    singles = [generate(setting, 7, range(i, i + 1)).images for i in range(12)]
    assert np.array_equal(np.concatenate(singles), whole.images)


def test_processes_do_not_matter() -> None:
    expected = [digest(32, "hard", 1, range(start, start + 20)) for start in (0, 20)]
    code = (
        "import hashlib; from attnbench.tasks._pathfinder import generate, parameters\n"
        "b = generate(parameters(32, 'hard'), 1, range(20))\n"
        "print(hashlib.sha256(b.images.tobytes() + b.labels.tobytes()).hexdigest())"
    )
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert fresh == expected[0]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        ranges = [range(20), range(20, 40)]
        setting = parameters(32, "hard")
        found = [sha(batch) for batch in pool.map(generate, [setting, setting], [1, 1], ranges)]
    assert found == expected


def test_seeds_indices_and_parameters_matter() -> None:
    setting = parameters(32, "hard")
    images = generate(setting, 0, range(50)).images
    assert len(np.unique(images.reshape(50, -1), axis=0)) == 50
    assert not (images == generate(setting, 1, range(50)).images).all(axis=(1, 2)).any()
    bare = generate(parameters(32, "hard", distractors=0), 0, range(50))
    assert bare.distractors_placed.max() == 0 and not np.array_equal(bare.images, images)
    assert generate(setting, 0, range(0)).images.shape == (0, 32, 32)


@pytest.mark.parametrize(("resolution", "margins"), [(64, {1}), (128, {2, 3}), (256, {3})])
def test_margins(resolution: int, margins: set[int]) -> None:
    assert set(generate(parameters(resolution, "easy"), 0, range(20)).margins.tolist()) == margins


@pytest.mark.parametrize(
    ("resolution", "hard", "intermediate", "easy"), [(32, 5, 6, 10), (64, 5, 7, 11), (128, 8, 11, 17), (256, 7, 10, 15)]
)
def test_distractors_follow_the_contour_length(resolution: int, hard: int, intermediate: int, easy: int) -> None:
    levels = ("hard", "intermediate", "easy")
    assert [parameters(resolution, level).distractors for level in levels] == [hard, intermediate, easy]


def test_wrong_settings_are_refused_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="32, 64, 128, 256"):
        parameters(48, "hard")
    with pytest.raises(ValueError, match="easy, intermediate, hard"):
        parameters(32, "medium")
    with pytest.raises(ValueError, match="snake_contrast"):
        parameters(32, "hard", contrast=1.0)
    with pytest.raises(ValueError, match="whole number"):
        parameters(32, "hard", dash_thickness=0.7)
    with pytest.raises(ValueError, match="index -1"):
        generate(parameters(32, "hard"), 0, np.array([3, -1]))
    with pytest.raises(ValueError, match="seed -1"):
        generate(parameters(32, "hard"), -1, range(1))
