// Keeps the part of a page that moves up to date: at each event of the job's stream, or every two seconds without one.
"use strict";
(() => {
  const POLL_MILLISECONDS = 2000;
  let source = null;
  let timer = null;

  const part = () => document.getElementById("live");
  const refresh = () => htmx.trigger(part(), "refresh");

  function poll() {
    if (timer === null) timer = setInterval(refresh, POLL_MILLISECONDS);
  }

  function stop() {
    if (source !== null) source.close();
    clearInterval(timer);
    source = timer = null;
  }

  function follow() {
    const url = part().dataset.live;
    if (url === undefined) return stop();
    if (url === "" || typeof EventSource === "undefined") return poll();
    if (source !== null) return undefined;
    source = new EventSource(url);
    source.addEventListener("job", refresh);
    source.addEventListener("open", () => { clearInterval(timer); timer = null; });
    source.addEventListener("error", poll); // the browser tries the stream again meanwhile, unless it was refused
    return undefined;
  }

  document.addEventListener("DOMContentLoaded", follow);
  document.addEventListener("htmx:afterSettle", follow);
  window.addEventListener("pagehide", stop);
})();
