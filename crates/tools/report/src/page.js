"use strict";
// What is shown under the pointer. The page is complete without it.
(() => {
  const tip = document.getElementById("tip");

  const show = (event, text) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const above = event.clientY - box.height - 12;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above > 8 ? above : event.clientY + 18}px`;
  };
  const hide = () => { tip.hidden = true; };

  const scaled = (value, base, units) => {
    let unit = 0;
    while (value >= base && unit + 1 < units.length) { value /= base; unit += 1; }
    return `${value >= 99.95 || unit === 0 ? value.toFixed(0) : value.toPrecision(3)} ${units[unit]}`;
  };
  const units = {
    ns: (v) => scaled(v, 1000, ["ns", "us", "ms", "s"]),
    seconds: (v) => scaled(v * 1e9, 1000, ["ns", "us", "ms", "s"]),
    bytes: (v) => scaled(v, 1000, ["B/s", "kB/s", "MB/s", "GB/s"]),
    number: (v) => (v >= 100 ? v.toFixed(0) : v.toPrecision(3)),
    share: (v) => `${(v * 100).toFixed(v > 0.999 ? 4 : v > 0.99 ? 3 : 2)} %`,
  };
  const apply = { linear: (v) => v, log: (v) => Math.log10(v), nines: (v) => -Math.log10(1 - v) };
  const undo = { linear: (t) => t, log: (t) => 10 ** t, nines: (t) => 1 - 10 ** -t };

  const axis = (text) => {
    const [scale, min, max, unit] = text.split(" ");
    const low = apply[scale](Number(min)), high = apply[scale](Number(max));
    return { value: (at) => undo[scale](low + at * (high - low)), words: units[unit] };
  };

  for (const svg of document.querySelectorAll("svg.plot")) {
    const x = axis(svg.dataset.x), y = axis(svg.dataset.y);
    const [left, top, right, bottom] = svg.dataset.frame.split(" ").map(Number);
    const lines = [...svg.querySelectorAll("polyline")].map((line) => ({
      line,
      name: line.dataset.name,
      points: line.getAttribute("points").split(" ").map((p) => p.split(",").map(Number)),
    }));
    const cursor = svg.querySelector(".cursor");
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      if (at < left || at > right) { hide(); cursor.style.visibility = "hidden"; return; }
      cursor.setAttribute("x1", at); cursor.setAttribute("x2", at);
      cursor.setAttribute("y1", top); cursor.setAttribute("y2", bottom);
      cursor.style.visibility = "visible";
      const text = [x.words(x.value((at - left) / (right - left)))];
      for (const { line, name, points } of lines) {
        if (line.classList.contains("off")) continue;
        // The last point at or before the pointer; a line that has not begun says nothing.
        let here = null;
        for (const p of points) { if (p[0] > at) break; here = p; }
        if (here) text.push(`${name}: ${y.words(y.value((bottom - here[1]) / (bottom - top)))}`);
      }
      show(event, text.join("\n"));
    });
    svg.addEventListener("pointerleave", () => { hide(); cursor.style.visibility = "hidden"; });
  }

  // Every legend hides and shows a way in all plots.
  document.documentElement.classList.add("script");
  const boxes = [...document.querySelectorAll("[data-show]")];
  for (const box of boxes) {
    box.addEventListener("change", () => {
      const way = box.dataset.show;
      for (const other of boxes) if (other.dataset.show === way) other.checked = box.checked;
      for (const drawn of document.querySelectorAll(`[data-way="${way}"]`)) drawn.classList.toggle("off", !box.checked);
    });
  }

  for (const cell of document.querySelectorAll("[data-tip]")) {
    cell.querySelector("title")?.remove();
    cell.addEventListener("pointermove", (event) => show(event, cell.dataset.tip));
    cell.addEventListener("pointerleave", hide);
  }
})();
