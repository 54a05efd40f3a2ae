"""Tests the browser page, which plays CartPole, in headless Chromium."""

import functools
import http.server
import pathlib
import shutil
import threading

import gymnasium as gym
import keras
import numpy as np
import pytest

import tf_reinforce as tfr

PAGE = pathlib.Path(__file__).parents[2] / "examples" / "browser"
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def agent():
    keras.utils.set_random_seed(0)
    agent = tfr.Reinforce.for_env("CartPole-v1", normalize_observations=True)
    agent.fit("CartPole-v1", epochs=40, episodes_per_epoch=16, verbose=0)
    return agent


@pytest.fixture(scope="module")
def url(agent, tmp_path_factory):
    """Serves the page, with the exported policy, on a free port."""
    if not (PAGE / "node_modules" / "onnxruntime-web").exists():
        pytest.skip("run `make browser`, which installs onnxruntime-web from npm")
    folder = tmp_path_factory.mktemp("browser")
    for name in ("index.html", "cartpole.js"):
        shutil.copy(PAGE / name, folder)
    (folder / "node_modules").symlink_to(PAGE / "node_modules")
    agent.export(folder / "policy", format="onnx")
    handler = functools.partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def page(url):
    api = pytest.importorskip("playwright.sync_api")
    if not pathlib.Path(CHROMIUM).exists():
        pytest.skip(f"there is no {CHROMIUM}")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 680, "height": 480})
        page.goto(url)
        page.wait_for_function("window.cartpole", timeout=60_000)
        yield page
        browser.close()


def test_steps_of_the_page_equal_those_of_gymnasium(page):
    env = gym.make("CartPole-v1").unwrapped
    rng = np.random.default_rng(0)
    for state, action in zip(rng.uniform(-1, 1, (50, 4)), rng.integers(0, 2, 50)):
        env.reset(seed=0)
        env.state = state
        terminated = env.step(action)[2]
        found = page.evaluate(
            "([state, action]) => [cartpole.nextState(state, action),"
            " cartpole.isTerminated(cartpole.nextState(state, action))]",
            [state.tolist(), int(action)],
        )
        np.testing.assert_allclose(found[0], env.state, rtol=1e-12)
        assert found[1] == terminated


def test_policy_of_the_page_equals_the_agent(page, agent):
    observations = np.random.default_rng(1).normal(0, 0.5, (50, 4)).astype("float32")
    found = [
        page.evaluate("state => cartpole.policy(state)", row.tolist())
        for row in observations
    ]
    actions = agent.act(observations, deterministic=True)
    probs = agent.head.parameters(agent(observations))["probs"]
    assert [x["action"] for x in found] == actions.tolist()
    np.testing.assert_allclose([x["probs"] for x in found], probs, atol=1e-5)


def test_trained_policy_balances_the_pole_for_500_steps(page):
    steps = page.evaluate(
        """async () => {
            let state = [0.01, 0, -0.02, 0], steps = 0;
            while (steps < 500 && !cartpole.isTerminated(state)) {
                const { action } = await cartpole.policy(state);
                state = cartpole.nextState(state, action);
                steps += 1;
            }
            return steps;
        }"""
    )
    assert steps == 500


def test_page_draws_the_probabilities_and_samples(page, tmp_path):
    page.check("#sample")
    page.wait_for_function(
        "Number(document.getElementById('prob-0').textContent) > 0", timeout=60_000
    )
    widths = page.evaluate(
        "[0, 1].map(i => parseFloat(document.getElementById(`bar-${i}`).style.width))"
    )
    assert abs(sum(widths) - 100) < 0.1
    page.wait_for_function(
        "document.getElementById('status').textContent.startsWith('step 1')",
        timeout=60_000,
    )
    page.screenshot(path=tmp_path / "browser.png")
    assert (tmp_path / "browser.png").stat().st_size > 5_000
