// Elements and words. Text only ever enters the page as text, so nothing that a run has written can be markup.

export const $ = (id) => document.getElementById(id);

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "style") Object.assign(made.style, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function table(into, headings, rows, numbers = []) {
  const cell = (tag) => (text, index) => el(tag, { className: numbers.includes(index) ? "num" : "" }, text ?? "");
  into.replaceChildren(
    el("thead", {}, el("tr", {}, ...headings.map(cell("th")))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell("td"))))),
  );
}

export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(digits)));
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const mib = value / 2 ** 20;
  return mib >= 1024 ? `${(mib / 1024).toFixed(1)} GiB` : `${mib.toFixed(0)} MiB`;
}

export function percent(share) {
  return `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

export function clock(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const whole = Math.round(seconds);
  const two = (part) => String(part).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export async function ask(path, parameters = {}, options = {}) {
  const answer = await fetch(`${path}?${new URLSearchParams(parameters)}`, options);
  if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
  return answer.json();
}
