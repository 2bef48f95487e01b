// Shows the lines of a text field as rows of inputs: name, lower, upper, unit, shape. The text field remains the source of the
// form, so that the page also works without this script.
"use strict";
(() => {
  const COLUMNS = ["Name", "Lower", "Upper", "Unit", "Shape"];
  const SHAPES = { line: "", circle: "periodic", latitude: "latitude", longitude: "longitude" }; // the last value of a line
  const EMPTY = COLUMNS.map(() => "");
  const MOST_ROWS = 64;

  // Split a line at commas outside of double quotes, as the server does. A doubled quote is a quote.
  function split(line) {
    const parts = [""];
    let isQuoted = false;
    for (let at = 0; at < line.length; at += 1) {
      if (isQuoted && line[at] === '"' && line[at + 1] === '"') {
        parts[parts.length - 1] += '"';
        at += 1;
      } else if (line[at] === '"' && (isQuoted || parts.at(-1).trim() === "")) isQuoted = !isQuoted;
      else if (line[at] === "," && !isQuoted) parts.push("");
      else parts[parts.length - 1] += line[at];
    }
    return COLUMNS.map((_name, at) => (parts[at] ?? "").trim());
  }

  function quote(part) {
    return /[",]/.test(part) ? `"${part.replaceAll('"', '""')}"` : part;
  }

  function join(parts) {
    if (parts.every((part) => part === "")) return "";
    const used = parts.findLastIndex((part) => part !== "") + 1;
    return parts.slice(0, Math.max(used, 3)).map(quote).join(", ");
  }

  const inputsOf = (row) => [...row.querySelectorAll("input, select")];

  function edit(text) {
    const table = document.createElement("table");
    table.className = "rows";
    table.createTHead().insertRow().append(...[...COLUMNS, "Action"].map((name) => {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      return cell;
    }));
    const body = table.createTBody();

    function store() {
      text.value = [...body.rows].map((row) => join(inputsOf(row).map((input) => input.value.trim())))
        .filter((line) => line !== "").join("\n");
    }

    function label() {
      for (const [at, row] of [...body.rows].entries()) {
        for (const [column, input] of inputsOf(row).entries()) {
          input.setAttribute("aria-label", `${COLUMNS[column]} of feature ${at + 1}`);
        }
        row.querySelector("button").setAttribute("aria-label", `Remove feature ${at + 1}`);
      }
    }

    // A header of a CSV file, pasted into a name, becomes a row for each column.
    function paste(event) {
      const names = event.clipboardData.getData("text").trim().split(/[,;\t]/).map((name) => name.trim().replace(/^"|"$/g, ""));
      if (names.length < 2 || names.some((name) => name === "")) return;
      event.preventDefault();
      const row = event.target.closest("tr");
      event.target.value = names[0];
      let last = row;
      for (const name of names.slice(1, MOST_ROWS)) last = add([name, ...EMPTY.slice(1)], last);
      label();
      store();
    }

    function add(parts, after) {
      const row = document.createElement("tr");
      for (const [column, part] of parts.entries()) {
        const isShape = column === COLUMNS.length - 1;
        const input = document.createElement(isShape ? "select" : "input");
        if (isShape) input.append(...Object.entries(SHAPES).map(([name, value]) => new Option(name, value)));
        else {
          input.autocomplete = "off";
          input.placeholder = COLUMNS[column];
        }
        input.value = part;
        if (column === 1 || column === 2) input.inputMode = "decimal";
        if (column === 0) input.addEventListener("paste", paste);
        row.insertCell().append(input);
      }
      const remove = document.createElement("button");
      remove.type = "button";
      remove.className = "quiet";
      remove.textContent = "Remove";
      remove.addEventListener("click", () => {
        row.remove();
        if (body.rows.length === 0) add(EMPTY);
        label();
        store();
      });
      row.insertCell().append(remove);
      if (after) after.after(row);
      else body.append(row);
      return row;
    }

    for (const line of text.value.split("\n")) if (line.trim() !== "") add(split(line));
    if (body.rows.length === 0) add(EMPTY);
    const more = document.createElement("button");
    more.type = "button";
    more.className = "quiet";
    more.textContent = "Add a feature";
    more.addEventListener("click", () => {
      const row = add(EMPTY);
      label();
      row.querySelector("input").focus();
    });
    const hint = document.createElement("p");
    hint.className = "about";
    hint.textContent = "Paste the header line of a CSV file into a name to get a row for each column.";
    const area = document.createElement("div");
    area.className = "scroll";
    area.append(table);
    table.addEventListener("input", store);
    text.before(area, more, hint);
    text.hidden = true;
    const caption = document.querySelector(`label[for="${text.id}"]`);
    caption.textContent = "Features";
    caption.removeAttribute("for"); // a click would move the focus to the hidden text field
    caption.id = `${text.id}-caption`;
    for (const named of [table, text]) named.setAttribute("aria-labelledby", caption.id);
    label();
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const text of document.querySelectorAll("textarea[data-rows]")) edit(text);
  });
})();
