/** Simulate several people on one page. Each line is a record with its own device and device memory. */

import { Device, IndexedDbStore } from "../dist/index.js";

const MAX_CONCURRENT = 8;
const form = document.querySelector("form");
const output = document.querySelector("output");

/** Send the report of one person. Return the outcome, or the code of an error. */
async function report({ url, key, dataset, cap }, line, person) {
  const store = new IndexedDbStore(`sfumato-person-${person}`);
  try {
    const device = new Device({ url, key, datasetId: dataset, cap, store });
    return (await device.report(line.split(",").map(Number))).outcome;
  } catch (error) {
    return error.code ?? "error";
  } finally {
    await store.close();
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const fields = Object.fromEntries(new FormData(form));
  const lines = fields.records.trim().split("\n");
  const counts = {};
  let next = 0;
  const sendNext = async () => {
    while (next < lines.length) {
      const person = next++;
      const outcome = await report(fields, lines[person], person);
      counts[outcome] = (counts[outcome] ?? 0) + 1;
      output.value = Object.entries(counts).map(([name, count]) => `${count} ${name}`).join(", ");
    }
  };
  form.querySelector("button").disabled = true;
  await Promise.all(Array.from({ length: MAX_CONCURRENT }, sendNext));
  form.querySelector("button").disabled = false;
  output.dataset.done = "true";
});
