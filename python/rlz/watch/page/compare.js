// Other runs beside this one: their curves, and the settings in which they differ.

import { $, ask, el, number, table } from "./dom.js";
import { Record } from "./record.js";

const MOST = 4;
const chosen = new Map();
let offered = [];
let shown = "";
let redraw = () => {};

async function choose(name, wanted) {
  if (!wanted) {
    chosen.delete(name);
  } else {
    const run = new Record();
    const [about, told] = await Promise.all([ask("/api/run", { run: name }), ask("/api/history", { run: name })]);
    run.take(told);
    chosen.set(name, { run, about });
  }
  await differences();
  redraw();
}

async function differences() {
  if (!chosen.size) {
    $("differences").replaceChildren();
    return;
  }
  const runs = [[shown, await ask("/api/run", { run: shown })], ...[...chosen].map(([name, { about }]) => [name, about])];
  const values = runs.map(([, about]) => new Map(about.settings.map((one) => [one.name, one.value])));
  const names = new Set(values.flatMap((one) => [...one.keys()]));
  const rows = [];
  for (const name of names) {
    if (name === "name") continue;
    const row = values.map((one) => one.get(name) ?? "–");
    if (new Set(row).size > 1) rows.push([name, ...row]);
  }
  table($("differences"), ["setting", ...runs.map(([name]) => name)], rows);
}

function list() {
  $("others").replaceChildren(
    ...offered
      .filter((run) => run.name !== shown)
      .map((run) => {
        const box = el("input", { type: "checkbox", checked: chosen.has(run.name) });
        box.onchange = () => {
          if (box.checked && chosen.size >= MOST) box.checked = false;
          else choose(run.name, box.checked);
        };
        return el("label", {}, box, ` ${run.name} `, el("span", { className: "dim" }, `${run.status}, best ${number(run.best_return)}`));
      }),
  );
  if (offered.length <= 1) $("others").textContent = "There is no other run in this folder.";
}

export const compare = {
  offer(runs) {
    offered = runs;
  },
  show(run, draw) {
    shown = run;
    redraw = draw;
    chosen.clear();
    list();
    differences();
  },
  records() {
    return [...chosen].map(([name, { run }]) => [name, run]);
  },
};
