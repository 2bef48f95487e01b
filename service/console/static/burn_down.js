// Draws granted, spent and reserved ε against time as a chart, from the first ledger entry until now.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const container = document.querySelector("[data-course]");
  const course = JSON.parse(container.dataset.course);
  const lines = [course.granted, course.charged_and_reserved, course.charged].map((line) => [...line, line.at(-1)]);
  const times = [...course.at, Math.max(course.at.at(-1), Date.now() / 1000)];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const DAY_SECONDS = 86400;
  let chart = null;

  function labels(_chart, ticks) {
    const isLong = ticks.at(-1) - ticks[0] >= DAY_SECONDS;
    return ticks.map((tick) => new Date(tick * 1000).toISOString().slice(...(isLong ? [0, 10] : [11, 19])));
  }


  function draw() {
    if (chart !== null) chart.destroy();
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
    const stepped = uPlot.paths.stepped({ align: 1 });
    const line = (label, name, fill) => ({ label, stroke: colour(name), fill, width: 2, paths: stepped, points: { show: false } });
    chart = new uPlot({
      width: container.clientWidth,
      height: 260,
      padding: [null, 40, null, null],
      scales: { y: { range: (_u, _low, high) => [0, high * 1.05 || 1] } },
      axes: [{ ...axis, values: labels, space: 90 }, { ...axis, label: "ε", size: 60 }],
      series: [
        { label: "time (UTC)", value: (_chart, at) => (at === null ? "--" : new Date(at * 1000).toISOString().slice(0, 19).replace("T", " ")) },
        line("granted", "--ink"),
        line("spent and reserved", "--reserved", colour("--reserved") + "55"),
        line("spent", "--charged", colour("--charged") + "77"),
      ],
      cursor: { drag: { x: false, y: false } },
    }, [times, ...lines], container);
  }

  draw();
  dark.addEventListener("change", draw);
  new ResizeObserver(() => { if (chart.width !== container.clientWidth) chart.setSize({ width: container.clientWidth, height: 260 }); }).observe(container);
});
