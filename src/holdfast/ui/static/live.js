"use strict";
// Makes the pages live where scripts run. Reading and deciding work without it.
// 1. Stores the browser's time zone, unless one was chosen: the next page is shown in it.
if (!/(?:^|; )holdfast_zone=/.test(document.cookie)) {
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (name) document.cookie = "holdfast_zone=" + name + "; max-age=31536000; samesite=strict; path=" + (document.body.dataset.base || "/");
}
// 2. A part of a page that reloads itself waits while somebody uses it: something in it has the focus, is selected or is open.
document.addEventListener("htmx:beforeRequest", (event) => {
  const part = event.target;
  if (part.querySelector("input[type=checkbox]:checked, details[open]") || (document.activeElement !== document.body && part.contains(document.activeElement))) event.preventDefault();
});
// 3. Shows what a running run emits and does, as it happens.
const live = document.querySelector("[data-stream]");
if (live) {
  const out = live.querySelector("pre");
  const source = new EventSource(live.dataset.stream);
  const add = (text) => {
    live.hidden = false;
    out.textContent = (out.textContent + text).slice(-20000);
    out.scrollTop = out.scrollHeight;
  };
  const said = (value) => (typeof value === "string" ? value : JSON.stringify(value) + "\n");
  source.addEventListener("chunk", (event) => add(said(JSON.parse(event.data).value)));
  source.addEventListener("message", (event) => add(said(JSON.parse(event.data).value)));
  source.addEventListener("superseded", () => { out.textContent = ""; });
  source.addEventListener("rest", () => { source.close(); location.reload(); });
}
