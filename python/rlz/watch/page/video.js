// Episodes of the newest policy: a picture whose frames keep coming, and what they show in words. The last evaluation as
// a file.

import { $, ask } from "./dom.js";

const frames = $("frames");
let shown = "";
let on = false;
let inSight = true;
let asking = null;
let recording = null;

async function words() {
  const { playing, problem } = await ask("/api/video/now", { run: shown });
  $("video-said").textContent = problem || playing || "the first frame takes some seconds";
  if (problem) set(false);
}

// Nothing is drawn while nobody can see it: the server's player stops when the last picture's stream has ended.
function stream() {
  const wanted = on && inSight && !document.hidden;
  if (wanted === frames.hasAttribute("src")) return;
  clearInterval(asking);
  // An address of its own each time, so that a stream that has ended begins anew.
  if (wanted) frames.src = `/api/video?${new URLSearchParams({ run: shown, at: Date.now() })}`;
  else frames.removeAttribute("src");
  if (wanted) asking = setInterval(words, 1000);
}

function set(wanted) {
  on = wanted;
  frames.hidden = !on;
  $("play").textContent = on ? "stop playing" : "play the newest policy";
  stream();
}

async function record(parameters) {
  const { said, problem, ready } = await ask("/api/recording", { run: shown, ...parameters });
  $("record-said").textContent = problem || said || (recording ? "the first frame takes some seconds" : "");
  $("recorded").hidden = !ready;
  $("recorded").href = `/api/evaluation.mp4?${new URLSearchParams({ run: shown })}`;
  if (problem || ready) {
    clearInterval(recording);
    recording = null;
  }
  $("record").disabled = recording !== null;
}

$("play").onclick = () => {
  $("video-said").textContent = "";
  set(!on);
};
$("record").onclick = () => {
  recording = setInterval(record, 1000);
  record({ begin: 1 });
};
document.addEventListener("visibilitychange", stream);
new IntersectionObserver((seen) => {
  inSight = seen.at(-1).isIntersecting;
  stream();
}).observe($("video"));

export const video = {
  show(run) {
    shown = run;
    set(false);
    clearInterval(recording);
    recording = null;
    for (const id of ["video-said", "record-said"]) $(id).textContent = "";
    record();
  },
};
