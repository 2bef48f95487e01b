// Shows times relative to now, with the exact time as the title. Adds a copy button to every element with `data-copy`, and
// the name of its column to every cell of a table that narrow screens show as cards.
"use strict";
(() => {
  const REFRESH_MILLISECONDS = 30000;
  const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60]];
  const COPIED_MILLISECONDS = 1500;
  const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

  function relative(seconds) {
    const found = UNITS.find(([, size]) => Math.abs(seconds) >= size);
    if (found === undefined) return "just now";
    return words.format(Math.trunc(seconds / found[1]), found[0]);
  }

  function showTimes() {
    for (const time of document.querySelectorAll("time[data-relative]")) {
      if (time.title === "") time.title = time.textContent;
      time.textContent = relative((Date.parse(time.dateTime) - Date.now()) / 1000);
    }
  }

  function addButtons() {
    for (const text of document.querySelectorAll("[data-copy]:not([data-has-button])")) {
      text.dataset.hasButton = "";
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.setAttribute("aria-label", `Copy ${text.dataset.copy}`);
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(text.textContent.trim());
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, COPIED_MILLISECONDS);
      });
      text.after(button);
    }
  }

  function labelCells() {
    for (const table of document.querySelectorAll("table.stack:not(.labelled)")) {
      const names = [...table.tHead.rows[0].cells].map((cell) => (cell.querySelector(".hidden") ? "" : cell.textContent));
      for (const cell of table.querySelectorAll("tbody td")) cell.dataset.label = names[cell.cellIndex];
      table.classList.add("labelled");
    }
  }

  function update() {
    showTimes();
    labelCells();
    addButtons();
  }

  document.addEventListener("DOMContentLoaded", update);
  document.addEventListener("htmx:afterSettle", update);
  setInterval(showTimes, REFRESH_MILLISECONDS);
})();
