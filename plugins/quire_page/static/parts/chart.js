// A chart of lines over time, drawn by uPlot. The library is loaded when the first chart is shown.

import { html, useEffect, useRef } from "../vendor/preact-htm.js";

const COLORS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];
const HEIGHT = 170;

// The variable with the colour of a line, also for the names beside the charts.
export const colorOf = (line) => COLORS[line % COLORS.length];

let library = null;

function load() {
  library ??= new Promise((resolve, reject) => {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = "ui/vendor/uplot.css";
    const script = document.createElement("script");
    script.src = "ui/vendor/uplot.js";
    script.addEventListener("load", () => resolve(globalThis.uPlot));
    script.addEventListener("error", () => reject(new Error("The chart library cannot be loaded.")));
    document.head.append(style, script);
  });
  return library;
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// data: [times in seconds, values of the first line, …]; names: of the lines; format: of a value; floor: the least
// height of the scale.
export function Chart({ title, data, names, format, theme, floor = 1 }) {
  const box = useRef(null);
  const plot = useRef(null);
  const newest = useRef(data);
  newest.current = data;
  const drawn = `${names.join("\n")} ${theme}`;
  useEffect(() => {
    let gone = false;
    let watcher = null;
    load().then((UPlot) => {
      if (gone) return;
      plot.current = new UPlot(options(box.current.clientWidth, names, format, floor), newest.current, box.current);
      watcher = new ResizeObserver(() => plot.current.setSize({ width: box.current.clientWidth, height: HEIGHT }));
      watcher.observe(box.current);
    });
    return () => {
      gone = true;
      watcher?.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [drawn]);
  useEffect(() => plot.current?.setData(data), [data]);
  return html`
    <figure class="chart">
      <figcaption>${title}</figcaption>
      <div ref=${box} role="img" aria-label="${title}, the last minutes; the table below has the numbers of now"></div>
    </figure>
  `;
}

function options(width, names, format, floor) {
  const axis = {
    stroke: color("--faint"),
    grid: { stroke: color("--rule"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui",
  };
  return {
    width,
    height: HEIGHT,
    cursor: { show: false },
    legend: { show: false },
    scales: { y: { range: (_, __, high) => [0, Math.max(high ?? 0, floor) * 1.1] } },
    axes: [
      { ...axis, values: [[1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]], space: 70, size: 28 },
      { ...axis, values: (_, ticks) => ticks.map(format), size: 52 },
    ],
    series: [{}, ...names.map((label, i) => ({ label, stroke: color(colorOf(i)), width: 2, points: { show: false } }))],
  };
}
