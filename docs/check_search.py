"""Checks that the search of the site answers the questions of docs/questions.md.

    make docs-search
    python docs/check_search.py SITE [--chromium PATH]

For each question, the program searches the built site in headless Chromium, and checks
that the page of the answer is among the first three pages of the results. The exit code
is 1 if a question is not answered.
"""

import argparse
import contextlib
import functools
import http.server
import pathlib
import re
import shutil
import sys
import threading
import typing
import urllib.parse

PAGE = pathlib.Path(__file__).parent / "questions.md"
FIRST = 3
FLAGS = "--no-sandbox", "--disable-gpu", "--disable-background-networking"


class Question(typing.NamedTuple):
    """A question of docs/questions.md."""

    text: str
    source: str  # address of an issue
    page: str  # name of the page that answers, without .md
    query: str


def read_questions(path=PAGE):
    """Returns the list of `Question`s of a page.

    Raises:
        ValueError: If a question lacks a part.
    """
    questions = []
    for section in path.read_text().split("\n## ")[1:]:
        title = section.split("\n")[0]
        text = re.match(r"\d+\. (.+\?)$", title)
        source = re.search(r"\n\[[^\]]+\]\((https://[^)]+)\)", section)
        page = re.search(r"\nSee \[[^\]]+\]\(([\w]+)\.md(#[\w-]+)?\)", section)
        query = re.search(r"\nSearch: `([^`]+)`", section)
        if not (text and source and page and query):
            raise ValueError(f"This question lacks its source, page or search: {title}")
        questions.append(Question(text[1], source[1], page[1], query[1]))
    return questions


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def serve(folder):
    """Serves a folder on a free port of this machine, and yields its address."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def search(browser_page, address, query):
    """Returns the names of the pages that a search finds, in order, each once."""
    browser_page.goto(f"{address}/search.html?q={urllib.parse.quote(query)}")
    status = "document.querySelector('#search-results .search-summary')?.innerText ?? ''"
    browser_page.wait_for_function(f"/finished|did not match/.test({status})")
    links = browser_page.locator("#search-results li > a:first-child")
    found = [links.nth(k).get_attribute("href") for k in range(links.count())]
    names = [urllib.parse.urlparse(x).path.split("/")[-1] for x in found]
    return list(dict.fromkeys(name.removesuffix(".html") for name in names))


def check(site, chromium, out=sys.stdout):
    """Prints a line for each question, and returns the questions without an answer."""
    from playwright import sync_api

    failed = []
    with serve(site) as address, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        browser_page = browser.new_page()
        for number, question in enumerate(read_questions(), 1):
            names = search(browser_page, address, question.query)
            rank = names.index(question.page) + 1 if question.page in names else None
            if rank is None or rank > FIRST:
                failed.append(question)
            print(f"{number:2} {rank or '-'!s:3} {question.query}: {names[:4]}", file=out)
        browser.close()
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=pathlib.Path, help="folder of the built site")
    found = shutil.which("chromium") or shutil.which("google-chrome")
    parser.add_argument("--chromium", default=found, help="program file of Chromium")
    options = parser.parse_args()
    if options.chromium is None:
        parser.error("there is no Chromium. Install it, or pass --chromium PATH")
    failed = check(options.site, options.chromium)
    count = len(read_questions())
    print(f"{count - len(failed)} of {count} questions are answered")
    for question in failed:
        print(f"not among the first {FIRST}: {question.page} for {question.query!r}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
