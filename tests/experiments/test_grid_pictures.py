"""Tests how pictures of environments are arranged and scaled."""

import numpy as np
import pytest

from tf_reinforce.experiments import grid_pictures

WIDE, HIGH, SQUARE = (100, 700, 3), (300, 100, 3), (256, 256, 3)


def tile(value, shape=(200, 300, 3), end=""):
    return grid_pictures.Tile(np.full(shape, value, np.uint8), 0, 7, 1.5, end)


def values(picture):
    """Returns the values of the tiles in a picture, row by row, without background."""
    found, gray = [], (picture == picture[..., :1]).all(-1)
    for row in picture[gray.any(1)]:
        uniform = [int(x) for x in dict.fromkeys(row[:, 0].tolist())]
        found += [x for x in uniform if (row == x).all(-1).sum() > 50]
    return list(dict.fromkeys(found))


def test_tiles_are_arranged_row_by_row():
    picture = grid_pictures.GridPainter(4).draw([tile(x) for x in (50, 100, 150, 200)])
    assert values(picture) == [50, 100, 150, 200]
    height, width, channels = picture.shape
    assert 2 * 200 < height < 2 * 230 and 2 * 300 <= width < 620 and channels == 3


@pytest.mark.parametrize(
    ("shape", "count", "columns"), [(WIDE, 3, 1), (HIGH, 6, 6), (SQUARE, 4, 2)]
)
def test_grid_has_the_shape_of_a_screen_and_few_empty_cells(shape, count, columns):
    painter = grid_pictures.GridPainter(count)
    painter.draw([tile(100, shape)] * count)
    assert painter._columns == columns


@pytest.mark.parametrize("count", range(1, 10))
def test_height_and_width_are_even(count):
    painter = grid_pictures.GridPainter(count, size=201)
    picture = painter.draw([tile(9, (201, 77, 3))] + [None] * (count - 1))
    assert picture.shape[0] % 2 == picture.shape[1] % 2 == 0
    assert picture.dtype == np.uint8


def test_small_picture_is_enlarged_by_a_whole_number():
    """Atari's 210 rows stay; 64 and 120 rows become sharp rows, at least 200."""
    for side, factor in ((64, 4), (120, 2), (210, 1)):
        small = np.random.default_rng(0).integers(0, 2, (side, side, 3)).astype(np.uint8)
        painter = grid_pictures.GridPainter(1)
        picture = painter.draw([grid_pictures.Tile(255 * small, 0, 0, 0.0)])
        expected = 255 * small.repeat(factor, 0).repeat(factor, 1)
        shown = picture[painter._strip :][: side * factor, : side * factor]
        np.testing.assert_array_equal(shown, expected)


@pytest.mark.parametrize("other", [(400, 600, 3), (100, 150, 3), (200, 200, 3)])
def test_picture_of_another_size_fits_into_its_tile(other):
    painter = grid_pictures.GridPainter(1)
    before = painter.draw([tile(200)])
    after = painter.draw([tile(200, other)])
    assert before.shape == after.shape
    width = 200 if other[0] == other[1] else 300
    assert (after[100] == 200).all(-1).sum() == width


def test_text_and_darker_picture_show_the_end():
    painter = grid_pictures.GridPainter(1)
    running, ended = painter.draw([tile(200)]), painter.draw([tile(200, end="truncated")])
    strip = painter._strip
    assert (running[:strip] != ended[:strip]).any()
    before, after = (x[strip : strip + 200, :300] for x in (running, ended))
    assert (before == 200).all() and (after < 150).all()


@pytest.mark.parametrize("with_episode", [True, False])
def test_label_is_not_wider_than_its_tile(with_episode):
    for width in (200, 300, 600, 1200):
        painter = grid_pictures.GridPainter(1, width, with_episode)
        painter.draw([tile(0)])
        label = painter._label(grid_pictures.Tile(None, 3, 1000, -123.25, "terminated"))
        assert painter._font.getlength(label) < width
        assert ("episode 3" in label) == with_episode and "return -123.25" in label


def test_grid_that_is_too_large_names_the_remedy():
    with pytest.raises(ValueError, match="smaller `size` or fewer environments"):
        grid_pictures.GridPainter(30, size=1000).draw([tile(0)] * 30)
