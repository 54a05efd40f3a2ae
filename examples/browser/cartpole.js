// Plays CartPole with the ONNX files of an exported policy, in ONNX Runtime Web.
"use strict";

const MAX_STEPS = 500;
const MAX_POSITION = 2.4;
const MAX_ANGLE = (12 * 2 * Math.PI) / 360;
const TAU = 0.02; // seconds for each step

// Returns the state after one step: position, velocity, angle, angular velocity.
// The equations are those of Gymnasium's CartPole-v1.
function nextState([x, velocity, angle, angularVelocity], action) {
  const gravity = 9.8, poleMass = 0.1, totalMass = 1.1, halfLength = 0.5;
  const force = action === 1 ? 10 : -10;
  const cos = Math.cos(angle), sin = Math.sin(angle);
  const poleMoment = poleMass * halfLength;
  const push = (force + poleMoment * angularVelocity ** 2 * sin) / totalMass;
  const angularAcceleration =
    (gravity * sin - cos * push) /
    (halfLength * (4 / 3 - (poleMass * cos ** 2) / totalMass));
  const acceleration = push - (poleMoment * angularAcceleration * cos) / totalMass;
  return [
    x + TAU * velocity,
    velocity + TAU * acceleration,
    angle + TAU * angularVelocity,
    angularVelocity + TAU * angularAcceleration,
  ];
}

const isTerminated = ([x, , angle]) =>
  Math.abs(x) > MAX_POSITION || Math.abs(angle) > MAX_ANGLE;

const initialState = () => Array.from({ length: 4 }, () => 0.1 * Math.random() - 0.05);

// Returns a function from a state and `sample` to the action and its probabilities.
async function loadPolicy(folder) {
  ort.env.wasm.numThreads = 1; // threads need a server that isolates the page
  ort.env.wasm.wasmPaths = new URL("node_modules/onnxruntime-web/dist/", location).href;
  const load = (name) => ort.InferenceSession.create(`${folder}/${name}.onnx`);
  const sessions = {
    act: await load("act"),
    sample: await load("sample"),
    distribution: await load("distribution"),
  };
  const tensor = (numbers) =>
    new ort.Tensor("float32", Float32Array.from(numbers), [1, numbers.length]);
  return async (state, sample = false) => {
    const observation = tensor(state);
    const { probs } = await sessions.distribution.run({ observation });
    const noise = tensor([Math.random(), Math.random()]);
    const { action } = sample
      ? await sessions.sample.run({ observation, noise })
      : await sessions.act.run({ observation });
    return { action: Number(action.data[0]), probs: Array.from(probs.data) };
  };
}

function draw([x, , angle], probs, step, episodeReturn) {
  const canvas = document.getElementById("picture"), context = canvas.getContext("2d");
  const { width, height } = canvas, scale = width / (2 * MAX_POSITION);
  const ground = height - 40, cart = width / 2 + scale * x;
  const color = getComputedStyle(document.body).color;
  context.clearRect(0, 0, width, height);
  context.strokeStyle = color;
  context.fillStyle = color;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(0, ground);
  context.lineTo(width, ground);
  context.stroke();
  context.fillRect(cart - 30, ground - 15, 60, 30);
  context.strokeStyle = "#e8710a";
  context.lineWidth = 9;
  context.lineCap = "round";
  context.beginPath();
  context.moveTo(cart, ground - 15);
  context.lineTo(cart + scale * Math.sin(angle), ground - 15 - scale * Math.cos(angle));
  context.stroke();
  probs.forEach((probability, action) => {
    document.getElementById(`bar-${action}`).style.width = `${100 * probability}%`;
    document.getElementById(`prob-${action}`).textContent = probability.toFixed(3);
  });
  document.getElementById("status").textContent =
    `step ${step}` + (episodeReturn === null ? "" : ` · last return ${episodeReturn}`);
}

async function main() {
  const policy = await loadPolicy("policy");
  let state = initialState(), step = 0, episodeReturn = null;
  document.getElementById("push").onclick = () => (state[3] += Math.random() < 0.5 ? 1 : -1);
  window.cartpole = { nextState, isTerminated, policy };
  for (;;) {
    const { action, probs } = await policy(state, document.getElementById("sample").checked);
    draw(state, probs, step, episodeReturn);
    state = nextState(state, action);
    step += 1;
    if (isTerminated(state) || step === MAX_STEPS) {
      [state, step, episodeReturn] = [initialState(), 0, step];
    }
    await new Promise((resolve) => setTimeout(resolve, 1000 * TAU));
  }
}

main().catch((error) => {
  document.getElementById("status").textContent = `${error.message ?? error}`;
});
