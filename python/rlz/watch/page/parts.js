// The parts of the page that are no curves: tiles, bars, tables.

import { $, bytes, clock, colour, el, number, percent, table } from "./dom.js";

const COLOURS = {
  act: "--c3", environment: "--c2", reset: "--c6", copy: "--c5", draw: "--c5", update: "--c0", publish: "--c1",
  evaluate: "--c7", other: "--dim",
};
const colourOf = (phase) => `var(${COLOURS[phase] ?? "--wait"})`;

export function header(view, name) {
  const { snapshot } = view;
  $("title").textContent = view.title;
  $("title").title = name;
  $("status").textContent = view.status;
  $("status").className = `badge ${view.status}`;
  const done = snapshot.env_steps / Math.max(1, snapshot.total_timesteps);
  $("progress").value = done;
  const left = view.status === "running" ? `, ${clock(snapshot.eta_s)} to go` : "";
  $("progress-text").textContent =
    `${number(snapshot.env_steps)} of ${number(snapshot.total_timesteps)} env steps (${percent(done)}), ${clock(snapshot.wall_s)} gone${left}`;
  for (const button of document.querySelectorAll(".control")) button.disabled = view.status !== "running";
  document.title = `${percent(done)} ${view.title}`;
}

export function tiles(view, record) {
  const { snapshot: now, over_the_run: run } = view;
  const live = view.status === "running";
  const shown = [
    ["env steps/s", number(live ? now.env_steps_per_s : run.env_steps_per_s), `over the run ${number(run.env_steps_per_s)}`],
    ["updates/s", number(live ? now.updates_per_s : run.updates_per_s), `over the run ${number(run.updates_per_s)}`],
    ["frames/s", number(live ? now.frames_per_s : record.mean("time/frames_per_s")), "rows of updates"],
    ["replay ratio", number(now.replay_ratio), view.asked_ratio ? `asked ${view.asked_ratio}` : "updates per env step"],
    ["policy lag", number(now.policy_lag ?? now.policy_lag_mean ?? record.mean("replay/policy_lag")), "versions behind"],
    ["time to go", live ? clock(now.eta_s) : "–", `${clock(now.wall_s)} gone`],
    ["training return", number(now.return_mean), `${number(now.episodes)} episodes`],
    ["evaluation", number(view.evaluation?.return_mean), `best ${number(view.best)}`],
    ["restarts", number(now.restarts), `${number(now.rows_lost)} rows lost`],
  ];
  if (now.at_end.success_rate !== undefined) shown.push(["success", percent(now.at_end.success_rate), "of training episodes"]);
  $("tiles").replaceChildren(
    ...shown.map(([name, value, more]) => el("div", { className: "tile" }, el("span", {}, name), el("b", {}, value), el("span", {}, more))),
  );
}

export function bars(view) {
  const seen = new Set();
  const rows = Object.entries(view.time).map(([name, shares]) => {
    const parts = Object.entries(shares).filter(([, share]) => share >= 0.002);
    parts.forEach(([phase]) => seen.add(phase));
    const track = el("div", { className: "track" });
    for (const [phase, share] of parts) {
      const text = share >= 0.08 ? `${phase} ${percent(share)}` : "";
      const className = phase in COLOURS ? "" : "wait";
      track.append(el("span", { className, title: `${phase} ${percent(share)}`, style: { width: `${100 * share}%`, background: colourOf(phase) } }, text));
    }
    const doing = view.doing[name];
    return el("div", { className: "bar" }, el("span", {}, name), track, el("small", {}, doing ? `${name} ${doing}` : ""));
  });
  $("bars").replaceChildren(...rows);
  $("legend").replaceChildren(
    ...[...seen].map((phase) => el("span", {}, el("i", { style: { background: colourOf(phase) } }), phase)),
  );
}

export function machine(view) {
  const { machine: now, snapshot } = view;
  const meters = (now?.cores ?? []).map((busy, index) => [`core ${index}`, busy, `${busy.toFixed(0)} %`]);
  if (now) meters.push(["memory", (100 * now.memory_used) / now.memory_total, `${bytes(now.memory_used)} of ${bytes(now.memory_total)}`]);
  for (const card of now?.cards ?? []) {
    meters.push([card.name, card.busy, `${card.busy.toFixed(0)} %, ${bytes(card.used)} of ${bytes(card.total)}`]);
  }
  $("cores").replaceChildren(
    ...meters.map(([name, value, text]) => el("div", {}, `${name} `, el("span", { className: "dim" }, text), el("meter", { max: 100, value }))),
  );
  const roles = new Map();
  for (const worker of snapshot.workers) {
    const sum = roles.get(worker.role) ?? { count: 0, cpu: 0, private: 0, shared: 0, threads: 0 };
    sum.count += 1;
    sum.cpu += worker.cpu_percent ?? 0;
    for (const what of ["private", "shared", "threads"]) sum[what] += worker[what] ?? 0;
    roles.set(worker.role, sum);
  }
  table(
    $("roles"),
    ["role", "workers", "CPU", "memory of its own", "shared", "threads"],
    [...roles].map(([role, sum]) => [role, number(sum.count), `${sum.cpu.toFixed(0)} %`, bytes(sum.private), bytes(sum.shared), number(sum.threads)]),
    [1, 2, 3, 4, 5],
  );
}

export function workers(view) {
  const rate = (worker) =>
    ({
      env_steps: `${number(worker.env_steps_per_s)} env steps/s`,
      updates: `${number(worker.updates_per_s)} updates/s`,
      episodes: `${number(worker.episodes_per_s)} episodes/s`,
      rows_written: `${number(worker.rows_per_s)} rows/s`,
    })[worker.progress];
  table(
    $("worker-table"),
    ["worker", "process", "CPU", "own", "shared", "rate", "lag", "restarts", "now"],
    view.snapshot.workers.map((one) => [
      one.name, one.pid ? String(one.pid) : "–", one.cpu_percent === null ? "–" : `${one.cpu_percent.toFixed(0)} %`,
      bytes(one.private), bytes(one.shared), rate(one), one.policy_lag === null ? "" : number(one.policy_lag),
      number(one.restarts), view.doing[one.name] ?? "",
    ]),
    [1, 2, 3, 4, 5, 6, 7],
  );
}

export function events(record) {
  const list = $("events");
  const shown = record.events.slice(-200);
  if (list.childElementCount === shown.length && list.firstChild?.textContent === shown.at(-1)) return;
  list.replaceChildren(...shown.reverse().map((text) => el("li", {}, text)));
}

export function settings(about) {
  const { plan } = about;
  const facts = Object.entries(plan.facts ?? {}).map(([name, text]) => `${name}: ${text}`);
  const predicted = plan.prediction
    ? [`predicted ${number(plan.prediction.env_steps_per_s)} env steps/s (${plan.prediction.bound})`]
    : [];
  $("plan").textContent = [plan.basis ? `plan: ${plan.basis}` : "", ...predicted, ...facts].filter(Boolean).join(" · ");
  table(
    $("setting-table"),
    ["option", "value", "origin", "reason"],
    about.settings.map((one) => [one.name, one.value, one.origin, one.reason]),
  );
}

export { colour };
