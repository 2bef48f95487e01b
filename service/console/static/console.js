// Shows times relative to now, with the exact time as the title. Adds a copy button to every element with `data-copy`,
// the name of its column to every cell of a table that narrow screens show as cards, and sorting to tables with `data-sorts`.
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

  // Returns the moment of a time, and a number for a text that starts with one. Numbers come before other texts.
  function sortKey(cell) {
    const time = cell.querySelector("time");
    const text = cell.dataset.value ?? cell.textContent.trim().replaceAll(",", "");
    const number = time ? Date.parse(time.dateTime) : Number.parseFloat(text);
    return Number.isNaN(number) ? cell.textContent.trim() : number;
  }

  function inOrder(one, other) {
    if (typeof one === typeof other) return typeof one === "number" ? one - other : one.localeCompare(other);
    return typeof one === "number" ? -1 : 1;
  }

  function sortRows(table, heading) {
    const sign = heading.ariaSort === "ascending" ? -1 : 1;
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    heading.ariaSort = sign === 1 ? "ascending" : "descending";
    const rows = [...table.tBodies[0].rows].map((row) => [sortKey(row.cells[heading.cellIndex]), row]);
    rows.sort(([one], [other]) => sign * inOrder(one, other));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  function addSorting() {
    for (const table of document.querySelectorAll("table[data-sorts]")) {
      table.removeAttribute("data-sorts");
      for (const heading of table.tHead.rows[0].cells) {
        if (heading.querySelector(".hidden") || heading.hasAttribute("data-unsorted")) continue;
        const button = document.createElement("button");
        button.type = "button";
        button.className = "sort";
        button.append(...heading.childNodes);
        button.addEventListener("click", () => sortRows(table, heading));
        heading.append(button);
      }
    }
  }

  function update() {
    showTimes();
    labelCells();
    addSorting();
    addButtons();
  }

  document.addEventListener("DOMContentLoaded", update);
  document.addEventListener("htmx:afterSettle", update);
  setInterval(showTimes, REFRESH_MILLISECONDS);
})();
