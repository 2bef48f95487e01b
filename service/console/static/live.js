// Reloads the live part of a page at each event of the job's stream. Polls every two seconds while there is no stream,
// and on pages that also show changes without an event.
"use strict";
(() => {
  const POLL_MILLISECONDS = 2000;
  let source = null;
  let timer = null;
  let isLoading = false;
  let isStale = false; // an event arrived during a request, so its response may be outdated

  const part = () => document.getElementById("live");
  const isPolled = () => part().dataset.polled !== undefined;

  function refresh() {
    isStale = isLoading;
    if (isLoading) return;
    isLoading = true;
    htmx.trigger(part(), "refresh");
  }

  function startPolling() {
    if (timer === null) timer = setInterval(refresh, POLL_MILLISECONDS);
  }

  function stopPolling() {
    if (isPolled()) return;
    clearInterval(timer);
    timer = null;
  }

  function stop() {
    if (source !== null) source.close();
    clearInterval(timer);
    source = timer = null;
  }

  function subscribe() {
    const url = part().dataset.live;
    if (url === undefined) return stop();
    if (url === "" || typeof EventSource === "undefined") return startPolling();
    if (isPolled()) startPolling();
    if (source !== null) {
      if (source.readyState === EventSource.OPEN) stopPolling();
      return undefined;
    }
    source = new EventSource(url);
    source.addEventListener("job", refresh);
    source.addEventListener("open", stopPolling);
    source.addEventListener("error", startPolling); // the browser reconnects, unless the service rejected the stream
    return undefined;
  }

  function handleSettle() {
    isLoading = false;
    subscribe();
    if (isStale) refresh();
  }

  function handleResponse(event) {
    if (event.detail.successful) return;
    isLoading = false;
    startPolling();
  }

  document.addEventListener("DOMContentLoaded", subscribe);
  document.addEventListener("htmx:afterSettle", handleSettle);
  document.addEventListener("htmx:afterRequest", handleResponse);
  window.addEventListener("pagehide", stop);
})();
