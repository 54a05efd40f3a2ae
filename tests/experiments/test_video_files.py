"""Tests which pictures a video file contains, and errors while it is written."""

import subprocess
import sys

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image
from PIL import ImageSequence

from tf_reinforce.experiments import video_files

SHAPE = (48, 64, 3)


def gray(value):
    return np.full(SHAPE, value, np.uint8)


def read(path):
    """Returns the mean value and the seconds of each picture of a video."""
    if path.suffix == ".gif":
        with Image.open(path) as image:
            return [
                (np.asarray(frame.convert("RGB")).mean(), frame.info["duration"] / 1000)
                for frame in ImageSequence.Iterator(image)
            ]
    count, seconds = imageio_ffmpeg.count_frames_and_secs(path)
    program = imageio_ffmpeg.get_ffmpeg_exe()
    command = [program, "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    result = subprocess.run(command, capture_output=True, check=True)
    assert b"yuv420p" in result.stderr and b"64x48" in result.stderr
    frames = np.frombuffer(result.stdout, np.uint8).reshape(count, -1)
    return [(x, seconds / count) for x in frames.mean(1)]


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_video_contains_each_picture_once_and_repeated_ones_longer(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    with video_files.write_video(path, 10) as writer:
        for value in (0, 100, 200):
            writer.add(gray(value))
        writer.add(gray(50), 5)
    values, seconds = zip(*read(path))
    np.testing.assert_allclose(sum(seconds), 0.8)
    distinct = [x for i, x in enumerate(values) if i == 0 or abs(x - values[i - 1]) > 5]
    np.testing.assert_allclose(distinct, [0, 100, 200, 50], atol=3)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_restart_removes_earlier_pictures(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    with video_files.write_video(path, 10) as writer:
        writer.add(gray(0), 4)
        writer.restart()
        writer.add(gray(200))
        writer.add(gray(100))
    np.testing.assert_allclose([x for x, _ in read(path)], [200, 100], atol=3)


def test_colors_of_a_gif_are_nearly_exact(tmp_path):
    picture = np.zeros(SHAPE, np.uint8)
    picture[:24, :, 0], picture[24:, :, 2], picture[:, 32:, 1] = 220, 180, 90
    with video_files.write_video(tmp_path / "a.gif", 10) as writer:
        writer.add(gray(255))
        writer.add(picture)
    with Image.open(tmp_path / "a.gif") as image:
        image.seek(1)
        read_back = np.asarray(image.convert("RGB")).astype(int)
    np.testing.assert_allclose(read_back, picture, atol=4)


def test_long_gif_has_few_pictures_and_the_whole_duration(tmp_path):
    """Every eighth picture is kept: 2,000 pictures at 50 per second take 40 seconds."""
    with video_files.write_video(tmp_path / "a.gif", 50) as writer:
        for step in range(2000):
            writer.add(gray(5 + step % 2 + 240 * (step == 1999)))
            assert len(writer._pictures) <= 400
    frames = read(tmp_path / "a.gif")
    assert len(frames) <= 401
    np.testing.assert_allclose(sum(seconds for _, seconds in frames), 40, rtol=0.01)
    np.testing.assert_allclose(frames[-1][0], 246, atol=3)  # the last picture remains


@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_failure_keeps_the_earlier_video(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"earlier")
    with pytest.raises(ZeroDivisionError), video_files.write_video(path, 10) as writer:
        writer.add(gray(0))
        raise ZeroDivisionError
    with (
        pytest.raises(ValueError, match="at least one picture"),
        video_files.write_video(path, 10),
    ):
        pass
    assert path.read_bytes() == b"earlier" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a.webp", "mp4", "a", "a.mp4.png"])
def test_other_extension_is_refused(name):
    with pytest.raises(ValueError, match=f"extension .mp4 or .gif. Received: '{name}'"):
        video_files.check_path(name)


@pytest.mark.parametrize(
    ("fps", "size"), [(0, None), (500, None), (None, 8), ("9", None)]
)
def test_invalid_option_is_refused(fps, size):
    with pytest.raises(ValueError, match=r"`(fps|size)` must be a finite number in"):
        video_files.check_options("a.gif", fps, size)


def test_missing_library_names_the_extra_and_the_other_format(monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    expected = r'pip install "tf-reinforce\[video\]"`, or write a GIF'
    with pytest.raises(ImportError, match=expected):
        video_files.check_path("a.mp4")
    assert video_files.check_path("a.GIF") == "gif"


@pytest.mark.parametrize("count", [1, 2000])
def test_error_of_ffmpeg_is_reported_and_keeps_the_file(tmp_path, monkeypatch, count):
    """With few pictures, the process fails after the last one, else between pictures."""
    program, path = tmp_path / "ffmpeg", tmp_path / "a.mp4"
    program.write_text(
        "#!/bin/sh\nhead -c 20000 > /dev/null; echo no codec >&2; exit 3\n"
    )
    program.chmod(0o755)
    path.write_bytes(b"earlier")
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))
    with (
        pytest.raises(OSError, match="ffmpeg could not write the video: no codec"),
        video_files.write_video(path, 10) as writer,
    ):
        writer.add(gray(0), count)
    assert path.read_bytes() == b"earlier"
