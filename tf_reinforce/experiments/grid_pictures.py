"""Draws the pictures of environments side by side, with step and return above each."""

import math
from typing import NamedTuple

import numpy as np
from PIL import Image
from PIL import ImageDraw
from PIL import ImageFont

_BACKGROUND, _TEXT, _ENDED = (22, 27, 34), (230, 237, 243), (240, 170, 80)
_FONT_SIZES = 8, 20  # smallest and largest height of the text in pixels
_GAP = 4  # pixels between two tiles
_MIN_SIDE = 200  # pixels; a smaller picture is enlarged, so that the text is readable
_MAX_SIDE = 4096  # pixels of a video, the limit of H.264 in most players
_ASPECT = 16 / 9  # width / height of a screen


class Tile(NamedTuple):
    """The picture of one environment, and the state of its episode."""

    picture: np.ndarray  # [H, W, 3] uint8
    episode: int
    step: int
    episode_return: float  # sum of the rewards so far
    end: str = ""  # "terminated" or "truncated" when the episode has ended


class GridPainter:
    """Draws a fixed number of tiles as one picture.

    The first picture of an environment determines the size of all tiles. A picture of
    another size is scaled to fit into its tile.

    Args:
        count: Positive int, the number of tiles.
        size: Positive int, the longer side of a tile without its text in pixels, or
            `None` for the size of the pictures. Pictures with less than 200 pixels are
            then enlarged by a whole number.
        with_episode: Bool, whether the text contains the number of the episode.
    """

    def __init__(self, count, size=None, with_episode=False):
        self._count = count
        self._size = size
        self._with_episode = with_episode
        self._tile_size = None

    def draw(self, tiles):
        """Returns the picture of the tiles, `[H, W, 3]` uint8, with even H and W.

        Args:
            tiles: List of `count` `Tile`s, or `None` in place of a tile that is empty.

        Raises:
            ValueError: If the picture would have more than 4,096 rows or columns.
        """
        if self._tile_size is None:
            self._arrange(next(tile for tile in tiles if tile is not None).picture.shape)
        canvas = Image.new("RGB", self._canvas_size, _BACKGROUND)
        for index, tile in enumerate(tiles):
            if tile is not None:
                row, column = divmod(index, self._columns)
                width, height = self._cell_size
                self._draw_tile(canvas, tile, column * width, row * height)
        return np.asarray(canvas)

    def _arrange(self, shape):
        height, width, _ = shape
        longer = max(height, width)
        factor = self._size / longer if self._size else math.ceil(_MIN_SIDE / longer)
        self._tile_size = max(1, round(factor * width)), max(1, round(factor * height))
        self._font = self._fitting_font()
        self._strip = self._font.size + 6
        cell = self._tile_size[0] + _GAP, self._tile_size[1] + self._strip + _GAP

        def badness(columns):
            rows = math.ceil(self._count / columns)
            aspect = columns * cell[0] / (rows * cell[1])
            return abs(math.log(aspect / _ASPECT)) + math.log(rows * columns)

        self._columns = min(range(1, self._count + 1), key=badness)
        rows = math.ceil(self._count / self._columns)
        size = self._columns * cell[0] - _GAP, rows * cell[1] - _GAP
        self._cell_size, self._canvas_size = cell, tuple(x + x % 2 for x in size)
        if max(self._canvas_size) > _MAX_SIDE:
            width, height = self._canvas_size
            raise ValueError(
                f"A video may have at most {_MAX_SIDE:,} rows and columns of pixels. "
                f"Received: {width} × {height} pixels. Set a smaller `size` or fewer "
                "environments (`num_envs`)."
            )

    def _fitting_font(self):
        """Returns a font in which a long label is not wider than a tile."""
        label = self._label(Tile(None, 100, 10000, -1000.5, "terminated"))
        font_size = (
            100 * self._tile_size[0] / ImageFont.load_default(100).getlength(label)
        )
        low, high = _FONT_SIZES
        return ImageFont.load_default(min(max(int(font_size), low), high))

    def _draw_tile(self, canvas, tile, x, y):
        picture = Image.fromarray(tile.picture)
        scale = min(a / b for a, b in zip(self._tile_size, picture.size))
        size = tuple(max(1, round(scale * side)) for side in picture.size)
        if size != picture.size:
            nearest = scale > 1 and float(scale).is_integer()
            method = Image.Resampling.NEAREST if nearest else Image.Resampling.LANCZOS
            picture = picture.resize(size, method)
        if tile.end:
            picture = Image.blend(picture, Image.new("RGB", size, _BACKGROUND), 0.4)
        left, top = ((a - b) // 2 for a, b in zip(self._tile_size, size))
        canvas.paste(picture, (x + left, y + self._strip + top))
        text = ImageDraw.Draw(canvas)
        color = _ENDED if tile.end else _TEXT
        text.text((x + 3, y + 1), self._label(tile), color, self._font)

    def _label(self, tile):
        episode = [f"episode {tile.episode}"] if self._with_episode else []
        words = [*episode, f"step {tile.step}", f"return {tile.episode_return:.6g}"]
        return "   ".join([*words, *([tile.end] if tile.end else [])])
