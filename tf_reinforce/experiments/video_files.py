"""Writes pictures to a video file, MP4 or GIF, while an episode runs."""

import contextlib
import math
import os
import subprocess
import tempfile
import zlib

import numpy as np
from PIL import Image

from tf_reinforce import files
from tf_reinforce import validation

FORMATS = "mp4", "gif"
MAX_FPS = 240  # pictures per second
_SIZES = 16, 4096  # smallest and largest side of the picture of one environment
_GIF_FPS = 25  # pictures per second of a GIF; browsers slow down faster GIFs
_MAX_GIF_PICTURES = 400
_PALETTE_SAMPLES = 16  # pictures of a GIF from which its palette is computed
_PALETTE_COLORS = 255  # one entry remains for "as in the previous picture"


def check_options(path, fps=None, size=None):
    """Returns the format of a video, and checks all options of a recording.

    Args:
        path: Path of the file, which has the extension .mp4 or .gif.
        fps: Number from 1 to 240, the pictures per second, or `None`.
        size: Number from 16 to 4,096, the longer side in pixels, or `None`.

    Raises:
        ValueError: If an option is invalid.
        ImportError: If the format is MP4, and imageio-ffmpeg is not installed.
    """
    if fps is not None:
        validation.within("fps", fps, 1, MAX_FPS)
    if size is not None:
        validation.within("size", size, *_SIZES)
    return check_path(path)


def check_path(path):
    """Returns the format that the extension of a path names, `"mp4"` or `"gif"`.

    Raises:
        ValueError: If the path has another extension.
        ImportError: If the format is MP4, and imageio-ffmpeg is not installed.
    """
    kind = os.path.splitext(os.fspath(path))[1].removeprefix(".").lower()
    if kind not in FORMATS:
        expected = " or ".join(f".{name}" for name in FORMATS)
        raise ValueError(
            f"A video must have the extension {expected}. Received: {os.fspath(path)!r}"
        )
    if kind == "mp4":
        _ffmpeg()
    return kind


@contextlib.contextmanager
def write_video(path, fps):
    """Yields a writer of a video file, which is at `path` when the `with` block ends.

    The method `add(picture, count=1)` of the writer adds `count` equal pictures. A
    picture is a `[H, W, 3]` uint8 array with even height and width, equal in all
    pictures. The method `restart()` removes all pictures. If the `with` block raises an
    exception, or there is no picture, a file at `path` stays unchanged.

    An MP4 file is written picture by picture, so that a long video needs no more memory
    than a short one. A GIF is written at the end, and has at most 25 pictures per second
    and 400 pictures: of a longer video, every second picture is left out, or three of
    four pictures, and so on, and the others are shown longer.

    Args:
        path: Path of the file, with the extension .mp4 or .gif.
        fps: Positive number, the pictures per second.

    Raises:
        ValueError: If the extension is another one, or there is no picture.
        ImportError: If the format is MP4, and imageio-ffmpeg is not installed.
        OSError: If the file cannot be written.
    """
    writer_type = {"mp4": _MP4Writer, "gif": _GIFWriter}[check_path(path)]
    with (
        files.atomic_write(path) as temporary,
        contextlib.closing(writer_type(temporary, fps)) as writer,
    ):
        yield writer
        writer.finish()


class _MP4Writer:
    """Sends pictures to a process of ffmpeg, which encodes H.264."""

    def __init__(self, path, fps):
        self._path = path
        self._fps = fps
        # A pipe could fill up, and block. The disk of the video may be full.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (`close` closes it)
        self._process = None

    def add(self, picture, count=1):
        if self._process is None:
            self._process = self._start(*picture.shape[:2])
        data = np.ascontiguousarray(picture).data
        try:
            for _ in range(count):
                self._process.stdin.write(data)
        except OSError:  # ffmpeg has ended
            self._process.kill()
            self.finish()

    def _start(self, height, width):
        raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
        # All players read 4:2:0. The index at the start lets a browser play at once.
        coded = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20"]
        coded += ["-movflags", "+faststart", "-f", "mp4"]
        command = [_ffmpeg(), "-v", "error", "-y", *raw, "-r", f"{self._fps:.6f}"]
        command += ["-i", "-", "-an", *coded, self._path]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        return subprocess.Popen(command, stderr=self._log, **pipes)

    def finish(self):
        """Waits until ffmpeg has written the file; raises an error if ffmpeg failed."""
        _expect_pictures(self._process is not None)
        with contextlib.suppress(OSError):  # a pipe to a process that has ended
            self._process.stdin.close()
        if self._process.wait() != 0:
            self._log.seek(0)
            text = self._log.read().decode(errors="replace").strip()
            raise OSError(f"ffmpeg could not write the video: {text[-500:]}")

    def restart(self):
        """Ends ffmpeg, if it still runs, and forgets its pictures."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()
        self._process = None

    def close(self):
        self.restart()
        self._log.close()


def _ffmpeg():
    """Returns the path of the program ffmpeg."""
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            "MP4 videos need imageio-ffmpeg. Install it with "
            '`pip install "tf-reinforce[video]"`, or write a GIF, with the extension '
            f".gif. Received: {error}"
        ) from error


class _GIFWriter:
    """Keeps compressed pictures, and writes them as a GIF at the end."""

    def __init__(self, path, fps):
        self._path = path
        self._fps = fps
        self.restart()

    def restart(self):
        """Forgets all pictures."""
        self._stride = math.ceil(self._fps / _GIF_FPS)  # one of so many is kept
        self._count = 0
        self._pictures, self._last = [], None  # as zlib-compressed bytes

    def close(self):
        """Does nothing, because `finish` writes the file."""

    def add(self, picture, count=1):
        self._shape, self._last = picture.shape, zlib.compress(picture.tobytes(), 1)
        for _ in range(count):
            if self._count % self._stride == 0:
                self._pictures.append(self._last)
            self._count += 1
            if len(self._pictures) > _MAX_GIF_PICTURES:
                self._pictures, self._stride = self._pictures[::2], 2 * self._stride

    def finish(self):
        """Writes the file."""
        _expect_pictures(self._count)
        if self._pictures[-1] is not self._last:
            self._pictures.append(self._last)
        palette = self._palette()
        first, *others = (
            self._image(x).quantize(palette=palette, dither=Image.Dither.NONE)
            for x in self._pictures
        )
        milliseconds = max(20, 10 * round(100 * self._stride / self._fps))
        first.save(
            self._path,
            format="GIF",
            save_all=True,
            append_images=others,
            duration=milliseconds,
            loop=0,
            optimize=True,  # stores only what differs from the previous picture
            palette=palette.palette.palette,
        )

    def _image(self, data):
        array = np.frombuffer(zlib.decompress(data), np.uint8)
        return Image.fromarray(array.reshape(self._shape))

    def _palette(self):
        """Returns an image with one palette for all pictures."""
        last = len(self._pictures) - 1
        indices = np.unique(np.linspace(0, last, _PALETTE_SAMPLES).astype(int))
        samples = [np.asarray(self._image(self._pictures[i])) for i in indices]
        return Image.fromarray(np.concatenate(samples)).quantize(_PALETTE_COLORS)


def _expect_pictures(condition):
    if not condition:
        raise ValueError("A video must have at least one picture. Received: none")
