// Keeps the part of a page that moves up to date: at each event of the job's stream, and every two seconds
// without one or where something moves that is no event.
"use strict";
(() => {
  const POLL_MILLISECONDS = 2000;
  let source = null;
  let timer = null;
  let isAsking = false;
  let isStale = false; // something moved while the page was asked for: what comes may be older

  const part = () => document.getElementById("live");
  const isPolled = () => part().dataset.polled !== undefined;

  function refresh() {
    isStale = isAsking;
    if (isAsking) return;
    isAsking = true;
    htmx.trigger(part(), "refresh");
  }

  function poll() {
    if (timer === null) timer = setInterval(refresh, POLL_MILLISECONDS);
  }

  function rest() {
    if (isPolled()) return;
    clearInterval(timer);
    timer = null;
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
    if (isPolled()) poll();
    if (source !== null) {
      if (source.readyState === EventSource.OPEN) rest();
      return undefined;
    }
    source = new EventSource(url);
    source.addEventListener("job", refresh);
    source.addEventListener("open", rest);
    source.addEventListener("error", poll); // the browser tries the stream again meanwhile, unless it was refused
    return undefined;
  }

  function settled() {
    isAsking = false;
    follow();
    if (isStale) refresh();
  }

  function answered(event) {
    if (event.detail.successful) return;
    isAsking = false;
    poll();
  }

  document.addEventListener("DOMContentLoaded", follow);
  document.addEventListener("htmx:afterSettle", settled);
  document.addEventListener("htmx:afterRequest", answered);
  window.addEventListener("pagehide", stop);
})();
