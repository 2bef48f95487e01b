// Draws a budget's course: what was granted, spent, and held on top of that, after each entry of the ledger.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const place = document.querySelector("[data-course]");
  const course = JSON.parse(place.dataset.course);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chart = null;

  function draw() {
    if (chart !== null) chart.destroy();
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
    const stepped = uPlot.paths.stepped({ align: 1 });
    const line = (label, name, fill) => ({ label, stroke: colour(name), fill, width: 2, paths: stepped, points: { show: course.x.length < 2 } });
    chart = new uPlot({
      width: place.clientWidth,
      height: 260,
      scales: { x: { time: false }, y: { range: (_u, _low, high) => [0, high * 1.05 || 1] } },
      axes: [{ ...axis, label: "ledger entry", incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000] }, { ...axis, label: "ε", size: 60 }],
      series: [
        { label: "entry" },
        line("granted", "--ink"),
        line("spent and held", "--held", colour("--held") + "55"),
        line("spent", "--posted", colour("--posted") + "77"),
      ],
      cursor: { drag: { x: false, y: false } },
    }, [course.x, course.granted, course.held, course.posted], place);
  }

  draw();
  dark.addEventListener("change", draw);
  new ResizeObserver(() => { if (chart.width !== place.clientWidth) chart.setSize({ width: place.clientWidth, height: 260 }); }).observe(place);
});
