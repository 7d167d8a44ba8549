// The page: one stream of messages in, everything drawn from it.

import { Chart, axis, join, palette, redrawAll } from "./charts.js";
import { compare } from "./compare.js";
import { $, ask, el } from "./dom.js";
import * as parts from "./parts.js";
import { Record } from "./record.js";
import { video } from "./video.js";

const RATES = ["time/env_steps_per_s", "time/updates_per_s", "replay/ratio_now", "replay/policy_lag"];
const HIDDEN = /^(workers\/|rollout\/return_mean|wall_s$|env_steps$|updates$|time$)/;

const record = new Record();
const returns = new Chart($("return-chart"));
const charts = new Map();
let shown = "";
let stream = null;
let lost = false;
let moved = false;
let drawing = 0;

function chartOf(tag, parent) {
  if (!charts.has(tag)) {
    const box = el("div", { className: "chart" });
    parent.append(box);
    charts.set(tag, new Chart(box, tag));
  }
  return charts.get(tag);
}

// Returns of a run on the present axis: training, evaluation with its spread, best so far.
function returnsOf(run) {
  const mean = run.evaluations.map((one) => one.return_mean);
  const spread = (sign) => run.evaluations.map((one) => one.return_mean + sign * one.return_std);
  let best = -Infinity;
  const bests = mean.map((value) => (best = Math.max(best, value)));
  return [
    [run.x, run.columns["rollout/return_mean"] ?? run.x.map(() => null)],
    [run.evaluated, mean, spread(-1), spread(1), bests],
  ];
}

function drawReturns() {
  const others = compare.records();
  const data = join([...returnsOf(record), ...others.flatMap(([, run]) => returnsOf(run).map((one) => one.slice(0, 2)))]);
  const own = palette(0);
  const series = [
    { label: "training", colour: palette(2), width: 1 },
    { label: "evaluation", colour: own, width: 2, points: true },
    { label: "- std", colour: "transparent" },
    { label: "+ std", colour: "transparent" },
    { label: "best so far", colour: palette(1), dash: [5, 4], width: 1 },
  ];
  others.forEach(([name], index) => {
    const stroke = palette(3 + index);
    series.push({ label: `${name} training`, colour: stroke, dash: [2, 3], width: 1 });
    series.push({ label: `${name} evaluation`, colour: stroke, width: 2, points: true });
  });
  returns.draw(data[0], series.map((one, index) => ({ ...one, values: data[index + 1] })), [[3, 4, `${own}30`]]);
}

function drawCurves() {
  drawReturns();
  const line = (tag, parent) => {
    const others = compare.records().filter(([, run]) => run.columns[tag]);
    const data = join([[record.x, record.columns[tag]], ...others.map(([, run]) => [run.x, run.columns[tag]])]);
    const names = [tag, ...others.map(([name]) => name)];
    const colours = [palette(0), ...others.map((_, index) => palette(3 + index))];
    chartOf(tag, parent).draw(data[0], names.map((label, index) => ({ label, colour: colours[index], values: data[index + 1] })));
  };
  for (const tag of RATES) if (record.columns[tag]) line(tag, $("rate-charts"));
  const rest = Object.keys(record.columns).filter((tag) => !HIDDEN.test(tag) && !RATES.includes(tag));
  const order = (tag) => (tag.startsWith("train/") ? `0${tag}` : `1${tag}`);
  rest.sort((a, b) => order(a).localeCompare(order(b)));
  const count = charts.size;
  for (const tag of rest) line(tag, $("metric-charts"));
  // A metric that comes later in a run has its place among the others.
  if (charts.size > count) $("metric-charts").append(...rest.map((tag) => charts.get(tag).parent));
}

function drawNow() {
  const { view } = record;
  parts.header(view, shown);
  parts.tiles(view, record);
  parts.bars(view);
  parts.machine(view);
  parts.workers(view);
  parts.events(record);
}

function draw() {
  drawing = 0;
  drawNow();
  if (moved) drawCurves();
  moved = false;
}

function follow(run) {
  stream?.close();
  record.clear();
  cancelAnimationFrame(drawing);
  drawing = 0;
  for (const chart of charts.values()) chart.forget();
  charts.clear();
  $("rate-charts").replaceChildren();
  $("metric-charts").replaceChildren();
  shown = run;
  stream = new EventSource(`/api/stream?${new URLSearchParams({ run })}`);
  stream.onmessage = (message) => {
    if (lost) $("said").textContent = "";
    lost = false;
    moved = record.take(JSON.parse(message.data)) || moved;
    // Browsers draw no frames of a page that is not seen; messages of that time are drawn at once afterwards.
    drawing ||= requestAnimationFrame(draw);
    document.body.dataset.messages = Number(document.body.dataset.messages ?? 0) + 1;
  };
  stream.onerror = () => {
    lost = true;
    $("said").textContent = "the server of this page does not answer; the run goes on without it";
  };
  compare.show(run, drawCurves);
  video.show(run);
  ask("/api/run", { run }).then((about) => {
    parts.settings(about);
  });
}

async function control(action) {
  const token = sessionStorage.token ?? prompt("The token that `rlz watch` has printed for what changes a run:");
  if (!token) return;
  try {
    const { said } = await ask(`/api/${action}`, { run: shown }, { method: "POST", headers: { "X-Rlz-Token": token } });
    sessionStorage.token = token;
    $("said").textContent = said;
  } catch (error) {
    delete sessionStorage.token;
    $("said").textContent = error.message;
  }
}

function labelAxis() {
  $("axis").textContent = axis.time ? "over time" : "over env steps";
}

$("axis").onclick = () => {
  axis.toggle();
  labelAxis();
  drawCurves();
};
$("theme").onclick = () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  redrawAll();
  drawCurves();
};
$("run").onchange = () => follow($("run").value);
for (const action of ["stop", "checkpoint"]) $(action).onclick = () => control(action);
labelAxis();
ask("/api/runs").then(({ shown: first, runs }) => {
  $("run").replaceChildren(
    ...runs.reverse().map((run) => el("option", { value: run.name, selected: run.name === first }, run.name)),
  );
  compare.offer(runs);
  follow(first);
});
