"""Learns where to look: recurrent attention on digits that are hidden among clutter.

    python examples/glimpses.py [EPOCHS] [attention | random | full] [SEED]

A picture of 24 x 24 pixels contains a handwritten digit of 8 x 8 pixels at a random
place, and pieces of other digits. The model sees only glimpses: squares of 8, 16 and 24
pixels around a point, all reduced to 8 x 8 numbers, so that only the center is sharp.
From each glimpse, a recurrent network chooses the next point, which is a sample. After
five glimpses, it names the digit. The loss is back-propagated through the network, and
trains the choices with REINFORCE (Mnih et al., 2014, Recurrent models of visual
attention). `random` is the same network with one glimpse at a random point, and `full` a
convolutional network of about the same size that sees the whole picture. The points that
the network looks at are drawn to `glimpses.png`.
"""

import sys

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from sklearn import datasets

import tf_reinforce as tfr

SIDE, PATCH, SCALES, GRID = 24, 8, (1, 2, 3), 9


class Digits(keras.utils.PyDataset):
    """Pictures with a digit and clutter, which are new in every epoch."""

    def __init__(self, digits, labels, seed, batch_size=100):
        super().__init__()
        self.digits, self.labels, self.batch_size = digits, labels, batch_size
        self.rng = np.random.default_rng(seed)
        self.on_epoch_end()

    def on_epoch_end(self):
        order = self.rng.permutation(len(self.labels))
        self.shuffled = self.labels[order]
        self.pictures = np.stack([self.draw(self.digits[index]) for index in order])

    def draw(self, digit):
        """Returns a picture `[24, 24, 1]` with three pieces of other digits."""
        picture = np.zeros((SIDE, SIDE, 1), "float32")
        for other in self.digits[self.rng.integers(len(self.digits), size=3)]:
            row, column = self.rng.integers(0, 5, 2)
            self.paste(picture, other[row : row + 4, column : column + 4])
        self.paste(picture, digit)
        return picture

    def paste(self, picture, piece):
        size = len(piece)
        row, column = self.rng.integers(0, SIDE - size + 1, 2)
        picture[row : row + size, column : column + size, 0] = piece

    def __len__(self):
        return len(self.labels) // self.batch_size

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return self.pictures[rows], self.shuffled[rows]


def load_digits(seed):
    """Returns a training set that changes in every epoch, and fixed test pictures."""
    digits, labels = datasets.load_digits(return_X_y=True)
    digits = (digits.reshape(-1, 8, 8) / 16).astype("float32")
    order = np.random.default_rng(0).permutation(len(labels))
    digits, labels = digits[order], labels[order]
    train = Digits(digits[:1400], labels[:1400], seed)
    test = [Digits(digits[1400:], labels[1400:], 1000 + n) for n in range(5)]
    pictures = np.concatenate([x.pictures for x in test])
    return train, (pictures, np.concatenate([x.shuffled for x in test]))


def to_points(choices):
    """Returns the points of choices 0 to 80, `[N, 2]`, rows and columns in [0, 1]."""
    grid = tf.cast(tf.stack([choices // GRID, choices % GRID], axis=1), tf.float32)
    margin = (PATCH - 1) / 2 / (SIDE - 1)
    return margin + grid / (GRID - 1) * (1 - 2 * margin)


def look(pictures, points):
    """Returns the glimpses of N pictures at N points, `[N, 8, 8, 3]`."""
    count, glimpses = tf.shape(pictures)[0], []
    for scale in SCALES:
        half, size = (PATCH * scale - 1) / 2 / (SIDE - 1), [PATCH * scale] * 2
        boxes = tf.concat([points - half, points + half], axis=1)
        square = tf.image.crop_and_resize(pictures, boxes, tf.range(count), size)
        square = tf.nn.avg_pool2d(square, scale, scale, "VALID")
        glimpses.append(square)
    return tf.concat(glimpses, axis=3)


class Attention(keras.Model):
    """Looks several times, and returns ten logits for the digit."""

    def __init__(self, num_glimpses=5, units=128):
        super().__init__()
        self.num_glimpses, self.units = num_glimpses, units
        self.what = keras.Sequential(
            [
                keras.layers.Conv2D(16, 3, activation="relu"),
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(units, "relu"),
            ]
        )
        self.where = keras.layers.Dense(32, "relu")
        self.both = keras.layers.Dense(units, "relu")
        self.memory = keras.layers.GRUCell(units)
        self.next_point = keras.layers.Dense(GRID * GRID)
        self.sample = tfr.layers.Sample(tfr.heads.Categorical(GRID * GRID))
        self.digit = keras.layers.Dense(10)

    def first_choices(self, count):
        return tf.fill([count], GRID * GRID // 2)  # the center

    def call(self, pictures, training=False):
        return self.look_around(pictures, training)[0]

    def look_around(self, pictures, training=False):
        """Returns the logits, and the list of the points of all glimpses."""
        count, points = tf.shape(pictures)[0], []
        choices, state = self.first_choices(count), tf.zeros([count, self.units])
        for step in range(self.num_glimpses):
            if step:
                choices = self.sample(self.next_point(state), training=training)
            points.append(to_points(choices))
            features = [self.what(look(pictures, points[-1])), self.where(points[-1])]
            state, _ = self.memory(self.both(tf.concat(features, axis=1)), [state])
        return self.digit(state), points


class OneRandomGlimpse(Attention):
    """The same network, which looks once, at a random point."""

    def __init__(self):
        super().__init__(num_glimpses=1)
        self.next_point.build((None, self.units))  # there is no second glimpse

    def first_choices(self, count):
        return self.sample(tf.zeros([count, GRID * GRID]), training=True)


def full_network():
    """A convolutional network that sees the whole picture."""
    layers = [keras.Input((SIDE, SIDE, 1))]
    for filters in (16, 32):
        layers.append(keras.layers.Conv2D(filters, 3, activation="relu"))
        layers.append(keras.layers.MaxPool2D())
    layers += [keras.layers.Flatten(), keras.layers.Dense(380, "relu")]
    return keras.Sequential([*layers, keras.layers.Dense(10)])


def train(kind, epochs, seed):
    """Returns a trained network, and its accuracy on the test pictures."""
    keras.utils.set_random_seed(seed)
    data, test = load_digits(seed)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rate = keras.optimizers.schedules.CosineDecay(2e-3, epochs * len(data))
    if kind == "full":
        network = model = full_network()
        options = {"loss": loss}
    else:
        network = Attention() if kind == "attention" else OneRandomGlimpse()
        options = {}
        model = tfr.ScoreFunction(network, loss=loss, samples=8, entropy_coef=0.003)
    optimizer = keras.optimizers.Adam(rate)
    model.compile(optimizer, metrics=["accuracy"], jit_compile=False, **options)
    model.fit(data, epochs=epochs, verbose=0)
    logs = model.evaluate(*test, batch_size=500, verbose=0, return_dict=True)
    return network, logs["accuracy"]


def draw(network, pictures, path):
    """Draws pictures with the path of the sharp squares, numbered from first to last."""
    _, points = network.look_around(pictures)
    figure, axes = plt.subplots(2, 4, figsize=(8, 4.2))
    for index, axis in enumerate(axes.flat):
        axis.imshow(pictures[index, :, :, 0], cmap="gray_r")
        axis.set(xticks=[], yticks=[])
        centers = np.stack([x[index] for x in points]) * (SIDE - 1)
        axis.plot(centers[:, 1], centers[:, 0], "-", color="tab:orange")
        numbers = {}  # of the glimpses at each center
        for number, center in enumerate(map(tuple, centers)):
            numbers.setdefault(center, []).append(number)
        for (row, column), glimpses in numbers.items():
            corner, color = (column - PATCH / 2, row - PATCH / 2), f"C{glimpses[0]}"
            axis.add_patch(plt.Rectangle(corner, PATCH, PATCH, fill=False, color=color))
            text = ", ".join(str(number + 1) for number in glimpses)
            axis.text(corner[0], corner[1] - 0.3, text, color=color, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    epochs, kind, seed = [*sys.argv[1:], *["200", "attention", "0"][len(sys.argv) - 1 :]]
    network, accuracy = train(kind, int(epochs), int(seed))
    print(f"{kind}: accuracy {accuracy:.3f} on 1,985 test pictures")
    if kind == "attention":
        draw(network, load_digits(int(seed))[1][0][:8], "glimpses.png")
