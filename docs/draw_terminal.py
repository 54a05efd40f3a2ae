"""Draws the text of a terminal as an SVG picture for the documents.

The text is read from standard input. It may contain the control sequences of colors, as
`tmux capture-pane -e -p` prints them.

    tmux capture-pane -e -p | python docs/draw_terminal.py --title train --out train.svg
"""

import argparse
import io
import re
import sys

import rich.console
import rich.terminal_theme
import rich.text

THEME = rich.terminal_theme.MONOKAI


def draw(text, title, width):
    """Returns an SVG picture of lines of text; it loads no font from the network."""
    console = rich.console.Console(
        file=io.StringIO(), record=True, width=width, force_terminal=True
    )
    console.print(rich.text.Text.from_ansi(text.rstrip()), soft_wrap=True)
    svg = console.export_svg(title=title, theme=THEME, unique_id="terminal")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "monospace")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--title", default="terminal")
    parser.add_argument("--width", type=int, default=100, help="columns")
    parser.add_argument("--out", required=True, metavar="FILE")
    options = parser.parse_args()
    with open(options.out, "w") as file:
        file.write(draw(sys.stdin.read(), options.title, options.width))


if __name__ == "__main__":
    main()
