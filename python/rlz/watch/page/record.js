// What a run has written down, as the server's messages tell it piece by piece.

import { axis } from "./charts.js";

export class Record {
  constructor() {
    this.clear();
  }

  clear() {
    this.columns = {};
    this.length = 0;
    this.evaluations = [];
    this.events = [];
    this.view = null;
  }

  take(message) {
    if (message.reset) this.clear();
    this.view = message.view;
    const added = message.history.env_steps?.length ?? 0;
    for (const [tag, values] of Object.entries(message.history)) {
      const column = (this.columns[tag] ??= new Array(this.length).fill(null));
      column.push(...values);
    }
    this.length += added;
    for (const column of Object.values(this.columns)) while (column.length < this.length) column.push(null);
    this.evaluations.push(...message.evaluations);
    this.events.push(...message.events);
    return added > 0 || message.evaluations.length > 0 || message.reset;
  }

  get x() {
    return this.columns[axis.time ? "wall_s" : "env_steps"] ?? [];
  }

  // Mean of what has been written of a tag.
  mean(tag) {
    const known = (this.columns[tag] ?? []).filter((value) => value !== null);
    return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
  }

  // Where evaluations lie on the axis: they know their env steps; their time follows from the log.
  get evaluated() {
    const steps = this.evaluations.map((one) => one.env_steps);
    return axis.time ? steps.map((at) => this.timeOf(at)) : steps;
  }

  timeOf(step) {
    const { env_steps: steps = [], wall_s: times = [] } = this.columns;
    let low = 0;
    let high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle + 1;
      else high = middle;
    }
    if (!steps.length) return 0;
    if (low === 0) return steps[0] ? (times[0] * step) / steps[0] : times[0];
    if (low === steps.length) return times[low - 1];
    const part = (step - steps[low - 1]) / Math.max(1, steps[low] - steps[low - 1]);
    return times[low - 1] + part * (times[low] - times[low - 1]);
  }
}
