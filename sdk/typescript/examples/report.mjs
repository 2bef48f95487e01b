/** Many people in one page: each line a record, each with a device and a memory of its own. */

import { Device, IndexedDbStore } from "../dist/index.js";

const AT_ONCE = 8;
const form = document.querySelector("form");
const output = document.querySelector("output");

async function answered({ url, key, dataset, cap }, line, person) {
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
  const given = Object.fromEntries(new FormData(form));
  const lines = given.records.trim().split("\n");
  const counts = {};
  let next = 0;
  const work = async () => {
    while (next < lines.length) {
      const person = next++;
      const outcome = await answered(given, lines[person], person);
      counts[outcome] = (counts[outcome] ?? 0) + 1;
      output.value = Object.entries(counts).map(([name, count]) => `${count} ${name}`).join(", ");
    }
  };
  form.querySelector("button").disabled = true;
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  form.querySelector("button").disabled = false;
  output.dataset.done = "true";
});
