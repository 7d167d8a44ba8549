// Episodes of the newest policy: a picture whose frames keep coming, and what they show in words.

import { $, ask } from "./dom.js";

let shown = "";
let asking = null;

async function words() {
  const { playing, problem } = await ask("/api/video/now", { run: shown });
  $("video-said").textContent = problem || playing || "the first frame takes some seconds";
  if (problem) set(false);
}

function set(on) {
  clearInterval(asking);
  const frames = $("frames");
  frames.hidden = !on;
  // An address of its own each time, so that a stream that has ended begins anew.
  if (on) frames.src = `/api/video?${new URLSearchParams({ run: shown, at: Date.now() })}`;
  else frames.removeAttribute("src");
  $("play").textContent = on ? "stop playing" : "play the newest policy";
  if (on) asking = setInterval(words, 1000);
}

$("play").onclick = () => {
  $("video-said").textContent = "";
  set($("frames").hidden);
};

export const video = {
  show(run) {
    shown = run;
    set(false);
    $("video-said").textContent = "";
  },
  recorded(name) {
    $("recorded").hidden = !name;
    if (name) $("recorded").href = `/api/evaluation.mp4?${new URLSearchParams({ run: shown })}`;
  },
};
