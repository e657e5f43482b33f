// Charts of the overview: columns from /series, drawn by uPlot in the colours of the page.
(() => {
  "use strict";
  const place = document.querySelector("[data-series]");
  if (!place) return;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const money = (value) => value == null ? "–" : "$" + (value >= 1 || value === 0 ? value.toFixed(2) : value.toPrecision(2));
  const seconds = (value) => value == null ? "–" : value < 1 ? `${Math.round(value * 1000)} ms` : `${+value.toFixed(1)} s`;
  const clock = (at) => {
    const time = new Date(at * 1000);
    const day = time.getHours() === 0 && time.getMinutes() === 0;
    return time.toLocaleString("en-GB", day ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit" });
  };
  const moment = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", timeZoneName: "short" };
  // The axes have no room for it, and other times of the pages are in UTC.
  document.querySelector("[data-zone]").textContent = new Intl.DateTimeFormat("en-GB", moment).formatToParts().at(-1).value;
  const whole = (value) => value == null ? "–" : value.toLocaleString("en");
  const STATES = ["completed", "failed", "aborted", "cancelled", "executing", "waiting", "queued", "pending_approval"].map((name) => [name, `--chart-${name}`]);
  const lines = (found) => found.map((one) => ({ ...one, points: one.values, sparse: true }));
  const stacked = (found) => {
    let below = null;
    const piled = found.map((one) => {
      below = one.values.map((value, n) => value + (below ? below[n] : 0));
      return { ...one, points: below, bars: true };
    });
    return piled.reverse(); // the tallest first, so that the others stand before it
  };
  const KINDS = {
    outcomes: (data) => stacked(STATES.filter(([name]) => data.outcomes[name]).map(([name, ink]) => ({ label: name.replace("_", " "), ink, values: data.outcomes[name], show: whole }))),
    durations: (data) => data.durations.p50.some((one) => one != null) ? lines([{ label: "median", ink: "--accent", values: data.durations.p50, show: seconds }, { label: "95th percentile", ink: "--term-hebbian", values: data.durations.p95, show: seconds }]) : [],
    cost: (data) => data.cost.dollars.some((one) => one) ? stacked([{ label: "dollars", ink: "--term-trust", values: data.cost.dollars, show: money }]) : [],
  };
  // Without a pointer on it the legend has no values, only names.
  const mark = (plot) => plot.root.classList.toggle("unread", plot.cursor.idx == null);
  const bars = uPlot.paths.bars({ size: [0.7, 32] });
  // Room for the longest label of the axis, such as $0.00040.
  const widest = (_, labels) => Math.max(58, 12 + 7 * Math.max(...(labels ?? []).map((label) => label.length)));
  const drawn = new Map();

  const options = (box, series) => ({
    width: box.clientWidth, height: 168, cursor: { y: false }, padding: [8, 24, 0, 0],
    legend: { live: true }, hooks: { ready: [mark], setLegend: [mark] },
    // Half a step more at both ends, so that no bar is cut.
    scales: { x: { range: (plot, low, high) => { const half = (plot.data[0][1] - plot.data[0][0]) / 2; return [low - half, high + half]; } }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [
      { stroke: colour("--faint"), grid: { show: false }, ticks: { stroke: colour("--line") }, size: 28, space: 64, values: (_, found) => found.map(clock) },
      { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, size: widest, values: (_, found) => found.map(series[0].show) },
    ],
    series: [{ label: "time", value: (_, at) => at == null ? "–" : new Date(at * 1000).toLocaleString("en-GB", moment) }, ...series.map((one) => ({
      label: one.label, stroke: colour(one.ink), width: one.bars ? 0 : 2, paths: one.bars ? bars : undefined, fill: one.bars ? colour(one.ink) : undefined,
      value: (_, __, ___, at) => one.show(at == null ? null : one.values[at]), points: { show: one.sparse === true, size: 5 },
    }))],
  });
  const draw = (box, data) => {
    const series = KINDS[box.dataset.chart](data);
    const columns = [data.times, ...series.map((one) => one.points)];
    const shape = series.map((one) => one.label).join() + box.clientWidth + document.documentElement.dataset.theme;
    const old = drawn.get(box);
    if (old?.shape === shape && old.plot) {
      series.forEach((one, n) => { old.series[n].values = one.values; });
      old.plot.setData(columns);
      return;
    }
    if (old?.shape === shape) return;
    old?.plot?.destroy();
    box.replaceChildren();
    if (!series.length) {
      const none = document.createElement("p");
      none.className = "none";
      none.textContent = "No data in this period.";
      box.append(none);
      drawn.set(box, { shape, plot: null });
      return;
    }
    drawn.set(box, { shape, series, plot: new uPlot(options(box, series), columns, box) });
  };
  let data = null;
  const show = () => { if (data) for (const box of place.querySelectorAll(".chart")) draw(box, data); };
  let asked = 0;
  const load = async () => {
    asked = Date.now();
    try {
      const answer = await fetch(place.dataset.series, { headers: { Accept: "application/json" } });
      if (answer.ok) { data = await answer.json(); show(); }
    } catch { /* the connection says so at the top */ }
  };
  load();
  setInterval(() => { if (!document.hidden) load(); }, 30_000);
  document.addEventListener("stentor:change", () => { if (Date.now() - asked > 5000 && !document.hidden) load(); });
  document.addEventListener("stentor:theme", show);
  new ResizeObserver(() => requestAnimationFrame(show)).observe(place);
})();
