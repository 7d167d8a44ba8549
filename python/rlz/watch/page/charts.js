// Charts: a thin layer over uPlot, which draws what it is given and nothing else.

import { clock, colour, el, number } from "./dom.js";

const drawn = new Set();
let overTime = false;

export const axis = {
  get time() {
    return overTime;
  },
  toggle() {
    overTime = !overTime;
  },
};

export const palette = (index) => colour(`--c${index % 8}`);

export function redrawAll() {
  for (const chart of drawn) chart.forget();
}

// A chart in an element. Series: {label, values, colour, dash, points, band: [lowIndex, highIndex]}.
export class Chart {
  constructor(parent, title = "") {
    this.title = title;
    this.parent = parent;
    this.heading = title ? el("h3", {}, title) : null;
    if (this.heading) parent.append(this.heading);
    this.plot = null;
    this.shape = "";
    drawn.add(this);
    new ResizeObserver(() => this.fit()).observe(parent);
  }

  // On a narrow page the legend takes more lines.
  fit() {
    this.plot?.setSize(this.size());
  }

  size() {
    const legend = this.legend ? (this.parent.querySelector(".u-legend")?.offsetHeight ?? 26) : 0;
    const taken = (this.heading ? this.heading.offsetHeight : 0) + legend;
    return { width: Math.max(60, this.parent.clientWidth), height: Math.max(60, this.parent.clientHeight - taken) };
  }

  forget() {
    this.plot?.destroy();
    this.plot = null;
  }

  // x: ascending numbers; series: see above; bands: [[low, high, colour]] by index of the series, from 1.
  draw(x, series, bands = []) {
    const shape = JSON.stringify([overTime, series.map(({ values, ...rest }) => rest), bands]);
    const data = [x, ...series.map((one) => one.values)];
    if (this.plot && shape === this.shape) {
      this.plot.setData(data);
      return;
    }
    this.forget();
    this.shape = shape;
    this.legend = series.length > 1;
    const axes = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    this.plot = new uPlot(
      {
        ...this.size(),
        legend: { show: this.legend },
        cursor: { drag: { x: true, y: false } },
        scales: { x: { time: false } },
        axes: [
          { ...axes, values: (_, ticks) => ticks.map((tick) => (overTime ? clock(tick) : short(tick))), space: 70 },
          { ...axes, values: (_, ticks) => ticks.map((tick) => short(tick)), size: 56 },
        ],
        series: [
          { label: overTime ? "time" : "env steps", value: (_, v) => (overTime ? clock(v) : number(v)) },
          ...series.map((one) => ({
            label: one.label,
            stroke: one.colour,
            width: one.width ?? 1.5,
            dash: one.dash,
            spanGaps: true,
            show: one.show ?? true,
            points: { show: one.points ?? false, size: 5 },
            value: (_, v) => number(v),
          })),
        ],
        bands: bands.map(([low, high, fill]) => ({ series: [high, low], fill })),
      },
      data,
      this.parent,
    );
    this.fit();
  }
}

function short(value) {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit) return `${Number((value / unit).toPrecision(4))}${letter}`;
  }
  return Number(value.toPrecision(4)).toString();
}

// Many tables [x, y, ...] on one x axis, as uPlot wants them.
export function join(tables) {
  const filled = tables.filter((one) => one[0].length);
  if (!filled.length) return [[], ...tables.flatMap((one) => one.slice(1).map(() => []))];
  if (tables.length === 1) return tables[0];
  return uPlot.join(tables);
}
